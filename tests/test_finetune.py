"""Fine-tuning: what a config says, what a run learns from and how, its folder, and what it does when it is cut short."""

import json
import math
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from lib import locks, paths, store
from lib.cli import main
from lib.config.base import build
from lib.errors import InputError
from lib.finetune import checkpoints, finetune, folders, networks, optimization, run, task
from lib.finetune import config as run_config
from lib.finetune import data as run_data
from lib.finetune.config import TrainConfig
from lib.finetune.data import Prefetched
from lib.finetune.transforms import Inputs, Prepare
from lib.measure.worker import call
from lib.schedule.runtime.worker_process import Member, Stopped
from lib.work import datasets, losses, models, weights
from lib.work.processes import Processes
from lib.work.training import Options, Recipe, Trainer
from tests import called, cut_training, nightly, python, refusal, refused
from tests.conftest import full_disk, home_paths
from tests.test_finetune_metrics import PARTS, gathered

pytestmark = pytest.mark.slow

SMALL = {"root": "synthetic:breastmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "load_pretrained": False,
         "batch_size": 16, "num_workers": 0, "epochs": 1, "autocast_dtype": "fp32", "max_datapoints_per_class": 24}
CPU = torch.device("cpu")


def small(**changes):
    return build(TrainConfig, {**SMALL, **changes}, "test")


def trained(folder, **changes):
    return run.train(small(**changes), folder, CPU, threads=1)


def last(folder):
    return weights.load(folder / "checkpoints/last.pt")


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


# ------------------------------------------------------------------------------------------------- config

def test_a_config_of_the_original_is_taken_as_it_is():
    config = small(loss_name="CE", tb_root="experiments/logs", ckpt_dir="experiments/checkpoints")
    assert config.loss_name == "cross_entropy" and config.tb_root == "experiments/logs"
    assert config.capped_splits == ("train", "val", "test")
    for outside in ("a/../b", "/a"):
        with refused("tb_root"):
            small(tb_root=outside)


def test_json_out_and_in_is_the_same_config_without_the_token():
    config = small(eval_topk=[2], hf_token="secret-123", autocast_dtype="float16", label2id={"cat": 0, "dog": 1},
                   id2label={"0": "cat", "1": "dog"}, class_labels=["cat", "dog"], max_datapoints_per_class=[3, 4])
    text = json.dumps(config.content())
    again = build(TrainConfig, dict(reversed(json.loads(text).items())), "test")
    assert again.content() == config.content() and again.hash == config.hash
    assert "secret-123" not in f"{text} {config!r} {config}" and "hf_token" not in text


def test_all_that_is_wrong_is_told_at_once_by_field_and_never_the_token():
    wrong = {"docker_image": "lab/torch:2", "env": {"KEY": "secret-123"},
             "model_flavour": " ", "loss_name": "lossy", "lr": -1, "monitor_metric": "val_acc@7", "hf_token": ["secret-123"],
             "label2id": {"a": 0, "b": 2}, "unknown": 1, "max_datapoints_per_class": 0}
    with pytest.raises(ValidationError) as error:
        TrainConfig(**wrong)
    problems = {str(problem["loc"][0]): problem["msg"] for problem in error.value.errors()}
    assert problems.keys() == {*wrong, "root"} - {"hf_token"}
    assert "cross_entropy, label_smoothing" in problems["loss_name"]
    assert "val_f1_macro" in problems["monitor_metric"]
    with pytest.raises(InputError) as error:
        build(TrainConfig, wrong, "test")
    assert "secret-123" not in str(error.value) and "lossy" in str(error.value)
    with pytest.raises(InputError, match="^test: docker_image is refused, because a run starts no container; start the agent"):
        build(TrainConfig, {**SMALL, "docker_image": "lab/torch:2"}, "test")
    assert small(docker_image="", env={}).content() == small().content()


@pytest.mark.parametrize("values, words", [
    ({"class_labels": ["a", "b"], "id2label": {0: "b", 1: "a"}}, "does not fit class_labels: b, a are not a, b"),
    ({"id2label": {1: "a", 2: "b"}}, "must number 2 different names from 0 to 1"),
    ({"monitor_metric": "val_loss"}, "would keep the worst val_loss; use 'min'")])
def test_what_does_not_fit_together_is_named(values, words):
    with refused(words):
        small(**values)


# ------------------------------------------------------------------------------------------------- names

def test_names_of_runs_and_their_versions_also_of_those_that_begin_at_the_same_moment(home):
    hub = small(model_flavour="google/vit-base", load_pretrained=True, model_suffix="-long run")
    assert folders.run_name(hub) == "google_vit-base__cross_entropy__pretrained-long_run"
    assert folders.run_name(small(run_name="../../etc")) == "etc"
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(folders.new_folder, [small()] * 24))
    names = {f"simple_cnn__cross_entropy__scratch{end}" for end in ("", *(f"-v{number}" for number in range(1, 24)))}
    assert made == {paths.TRAINING / "breastmnist" / name for name in names}
    assert folders.newest(small()).name.endswith("-v23")
    assert folders.newest(small(epochs=9)) is None


WITHOUT_TORCH = f"""
import sys
from lib.dashboard.configurations import check_config
from lib.finetune import config, folders
checked = check_config({SMALL})
check_config({SMALL} | dict(model_flavour="resnet50", load_pretrained=True, root="medmnist:pathmnist"))
assert folders.new_folder(config.TrainConfig(**checked.values)).is_dir()
assert "torch" not in sys.modules
"""


def test_a_plain_config_is_checked_and_gets_its_folder_without_torch(tmp_path):
    """A server's first request would wait for torch for seconds."""
    python("-c", WITHOUT_TORCH, LIB_OUTPUT=str(tmp_path))
    assert {*folders.OURS, *folders.TORCHVISION} <= {*models.names()}


@pytest.mark.parametrize("changes, words", [
    ({"load_pretrained": True}, "'simple_cnn' has no pretrained weights; set load_pretrained to false"),
    ({"root": "synthetic:organmnist3d", "model_flavour": "resnet18"}, "but synthetic:organmnist3d holds volumes"),
    ({"root": "medmnist:none"}, "no dataset 'none' in root 'medmnist:none'; there are: pathmnist"),
    ({"root": "other:none"}, "other:none/train is no folder"),
    ({"model_flavour": "resnet5000"}, "is no folder, no torchvision classifier")])
def test_what_exists_nowhere_is_refused_before_there_is_a_folder(changes, words):
    with refused(words):
        folders.check(small(**changes))


def test_a_config_chooses_where_logs_and_checkpoints_lie_and_which_splits_are_capped(home, capsys):
    places = [home / f"experiments/{kind}/breastmnist/simple_cnn__cross_entropy__scratch" for kind in ("logs", "weights")]
    config = small(tb_root="experiments/logs", ckpt_dir="experiments/weights", max_datapoints_per_class=(9, 5),
                   capped_splits=["train", "val"])
    finetune.finetune(config)
    assert list(places[0].glob("events*")) and (places[1] / "best.pt").is_file()
    assert "14 of 546 train samples, 14 of 78 val samples, 156 of 156 test samples" in capsys.readouterr().out
    shutil.rmtree(paths.TRAINING)
    assert folders.new_folder(config).name == f"{places[1].name}-v1", "what is left of the first run is not taken up"


# ------------------------------------------------------------------------------------------------- data

@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=8, max_size=40), st.booleans(),
       st.integers(1, 4) | st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 9))
def test_a_cap_holds_for_each_class_and_no_sample_is_left_out_in_vain(rows, several, most, seed):
    labels = np.array(rows) if several else np.array(rows).sum(1, keepdims=True) % 3
    truth = labels if several else np.eye(3, dtype=int)[labels[:, 0]]
    kept = run_data.capped(labels, 3, most, seed)
    assert kept == sorted(set(kept)) == run_data.capped(labels, 3, most, seed)
    counts, left_out = truth[kept].sum(0), np.delete(truth, kept, axis=0)
    assert (counts <= most).all() and (left_out[:, counts == most] > 0).any(1).all()


@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5))
def test_batches_are_a_function_of_seed_and_epoch_whatever_the_processes(total, size, accumulate, count, first):
    def batches(rank=0, count=1, begin=0):
        sampler = run_data.Batches(range(100, 100 + total), size, accumulate, 7, Processes(rank, count))
        sampler.begin(3, begin)
        return sampler, list(sampler)

    _, whole = batches()
    assert sorted(key for batch in whole for key in batch) == [(3, index) for index in range(100, 100 + total)]
    assert min(map(len, whole)) > 1 or total == 1 or size == 1
    first = min(first, len(whole))
    assert batches(begin=first)[1] == whole[first:]
    shares = [batches(rank, count) for rank in range(count)]
    for number, batch in enumerate(whole):
        start = number // accumulate * accumulate
        samples, taken = sum(map(len, whole[start:start + accumulate])), []
        for sampler, of_rank in shares:
            part, weight = of_rank[number], sampler.weight(number)
            assert part, "also where it weighs nothing"
            assert sampler.share(number) == (len(part) if weight else 0)
            taken += part if weight else []
            # the mean over processes of weighted mean losses weighs each sample alike
            assert not weight or math.isclose(weight / count / len(part), 1 / samples)
        assert sorted(taken) == sorted(batch)


@pytest.fixture
def folder(tmp_path):
    """Return a dataset of two classes, and a test split that lacks one of them."""
    root = cut_training.pictures(tmp_path / "pets", {"train": 6, "val": 6, "test": 6})
    shutil.rmtree(root / "test/cat")
    return root


def opened(**changes):
    config = small(**changes)
    names, facts = run_data.names_and_facts(config)
    return run_data.open_data(config, networks.network(config, facts).inputs, names)


def test_a_folder_of_images_and_its_labels(folder):
    (folder / "train/.ipynb_checkpoints").mkdir()
    data = opened(root=str(folder), image_size=16)
    assert data.labels == ("cat", "dog") and data.data_source == "imagefolder" and small(root=str(folder)).dataset == "pets"
    assert data.splits["test"].labels.ravel().tolist() == [1] * 6, "classes are those of train, also where some are missing"
    tensor, label = data.splits["train"][0, 0]
    assert tuple(tensor.shape) == (3, 16, 16) and label.tolist() == [0]
    mapped = opened(root=str(folder), label2id={"dog": 0, "cat": 1})
    assert mapped.labels == ("dog", "cat") and mapped.splits["train"].labels.ravel().tolist() == [1] * 6 + [0] * 6
    assert mapped.splits["train"][0, 0][1].tolist() == [1]
    (folder / "train/cat/0.png").write_bytes(b"no picture")
    with refused(r"train/cat/0\.png cannot be read: Pillow knows no picture of this kind"):
        data.splits["train"][0, 0]
    (folder / "val/fox").mkdir()
    with refused("val has classes that train/ has not: fox; train/ has: cat, dog"):
        opened(root=str(folder))


def test_several_labels_of_an_image_are_in_the_order_of_the_config(home):
    usual = opened(root="synthetic:chestmnist", loss_name="bce")
    turned = opened(root="synthetic:chestmnist", loss_name="bce", class_labels=[*usual.labels[3:], *usual.labels[:3]])
    before, after = (data.splits["val"].labels for data in (usual, turned))
    number = int((before != after).any(1).argmax())
    assert turned.splits["val"][0, number][1].tolist() == after[number].tolist() == np.roll(before[number], -3).tolist()


@pytest.mark.parametrize("changes, words", [
    ({"class_labels": ["cat", "canis"]}, r"name some classes of .*pets \(cat\), but others than dog; name them"),
    ({"max_datapoints_per_class": [1, 2, 3]}, "max_datapoints_per_class has 3 numbers, but there are 2 classes"),
    ({"root": "nowhere"}, "root 'nowhere' names a folder, .*nowhere/train is no folder; a folder of pictures has train/"),
    ({"root": "synthetic:nodulemnist3d", "model_flavour": "cnn3d", "gpu_batch_aug": True},
     "change pictures, but synthetic:nodulemnist3d holds volumes; set both to false")])
def test_data_and_models_that_are_not_there_or_do_not_fit_are_one_line(home, folder, changes, words):
    with refused(words):
        opened(**{"root": str(folder), **changes})


def test_pictures_are_cropped_resized_and_normalised():
    picture = Image.fromarray(np.full((20, 40, 3), 255, np.uint8))
    assert torch.equal(Prepare(Inputs(3, 10, (0.5,) * 3, (0.25,) * 3))(picture), torch.full((3, 10, 10), 2.0))
    assert Prepare(Inputs(1, 20))(picture).shape == (1, 20, 20)


def test_augmentation_is_a_function_of_seed_epoch_and_sample(home):
    def image(seed, epoch):
        return opened(cpu_color_jitter=True, seed=seed).splits["train"][epoch, 5][0]

    before = torch.get_rng_state()
    first = image(1, 0)
    assert torch.equal(torch.get_rng_state(), before), "what else draws from torch's generator is not disturbed"
    torch.rand(7)
    assert [torch.equal(image(*key), first) for key in ((1, 0), (1, 1), (2, 0))] == [True, False, False]


@pytest.mark.cuda
def test_batches_arrive_whole_on_a_gpu():
    batches = [(torch.full((256, 1024), float(number)).pin_memory(),) for number in range(20)]
    for number, (part,) in enumerate(Prefetched(batches, torch.device("cuda:0"))):
        product = part @ part.T
        assert torch.equal(product.cpu(), torch.full((256, 256), 1024.0 * number**2))


# ------------------------------------------------------------------------------------------------- steps

def test_biases_norms_and_vectors_do_not_decay():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3).requires_grad_(False), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2),
                                torch.nn.LayerNorm([2, 2]))
    decayed, kept = optimization.groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0.0
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 4)] and len(kept["params"]) == 5
    with refused("no parameter of the model is trained"):
        optimization.groups(model.requires_grad_(False), 0.1)


def test_the_rate_rises_over_the_warm_up_and_falls_as_a_cosine():
    stepped = optimization.optimizer(small(lr=0.5), torch.nn.Linear(2, 2))
    schedule = optimization.schedule(small(warmup_ratio=0.21), stepped, 30)
    cosine = [0.25 * (1 + math.cos(math.pi * step / 23)) for step in range(24)]
    for rate in [*(step / 14 for step in range(7)), *cosine]:
        assert stepped.param_groups[0]["lr"] == pytest.approx(rate)
        stepped.step()
        schedule.step()


def test_losses_against_known_answers():
    logits, classes = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    each = torch.tensor([math.log(1 + math.exp(-2)), math.log(2)])
    assert losses.build("focal", False)(logits, classes) == pytest.approx(((1 - torch.exp(-each)) ** 2 * each).mean().item())
    for multi_label, truth in ((False, classes), (True, torch.eye(2))):
        assert losses.build("bce", multi_label)(logits, truth) == pytest.approx((each[0] + 3 * each[1]).item() / 4)
    with refused("'cross_entropy' takes one class an image, but these may have several; .*: bce"):
        losses.build("cross_entropy", True)


# ------------------------------------------------------------------------------------------------- networks

COLOURS = datasets.Facts(3, 9, 2, False, (0, 0, 0))


def built(labels, **changes):
    return networks.network(small(**changes), COLOURS).build(tuple(labels))


def test_a_checkpoint_of_hugging_face_gets_a_head_for_the_classes(tmp_path):
    where = cut_training.tiny_vit(tmp_path / "vit")
    with refused("no image classifier can be made of it"):
        built("ab", model_flavour=where, load_pretrained=True)
    scratch = built("abc", model_flavour=where)
    assert scratch.config.id2label == {0: "a", 1: "b", 2: "c"} and scratch.config.label2id == {"a": 0, "b": 1, "c": 2}
    scratch.save_pretrained(where)
    tuned = built("abcd", model_flavour=where, load_pretrained=True, freeze_backbone=True)
    assert tuned(torch.zeros(2, 3, 28, 28)).logits.shape == (2, 4)
    assert same(tuned.vit.state_dict(), scratch.vit.state_dict())
    assert {name for name, p in tuned.named_parameters() if p.requires_grad} == {"classifier.weight", "classifier.bias"}
    cut_training.tiny_vit(tmp_path / "vit", hidden_size=28)
    with refused(r"its weights do not fit its config: \d+ missing or of another shape, such as vit"):
        built("ab", model_flavour=where, load_pretrained=True)


def test_the_inputs_of_a_model_are_those_of_its_image_processor(tmp_path):
    from transformers import ViTImageProcessor

    def inputs(**changes):
        return networks.network(small(model_flavour=where, **changes), COLOURS).inputs

    where = cut_training.tiny_vit(tmp_path)
    assert inputs() == Inputs(3, 28), "without one: its size, and the usual"
    ViTImageProcessor(size={"height": 40, "width": 40}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    assert inputs().size == 40 and inputs().mean == (0.1, 0.2, 0.3) and inputs(image_size=32).size == 32


class _Harmful:
    def __reduce__(self):
        return pytest.fail, ("it was run",)


def test_weights_of_torchvision_are_read_as_data(tmp_path, monkeypatch):
    from torchvision.models import get_model, get_model_weights

    name = "shufflenet_v2_x0_5"
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    kept = tmp_path / "checkpoints" / get_model_weights(name).DEFAULT.url.rpartition("/")[2]
    model = get_model(name)
    weights.save(model.state_dict(), kept)
    network = networks.network(small(model_flavour=name, load_pretrained=True, freeze_backbone=True), COLOURS)
    assert network.inputs.size == 224 and network.inputs.mean[0] == 0.485
    loaded = network.build(("a", "b"))
    assert torch.equal(loaded.conv5[0].weight, model.conv5[0].weight)
    assert [p.shape for p in loaded.parameters() if p.requires_grad] == [(2, 1024), (2,)]
    torch.save({"fc.weight": _Harmful()}, kept)
    with refused("its weights cannot be had .*[Ww]eights.only"):
        network.build(("a", "b"))


# ------------------------------------------------------------------------------------------------- runs

def test_a_run_from_config_to_folder(home, capsys):
    config = small(save_per_epoch_checkpoint=True, epochs=2)
    summary = finetune.finetune(config)
    folder = paths.TRAINING / "breastmnist/simple_cnn__cross_entropy__scratch"
    assert summary == store.read_json(folder / "summary.json")
    kept, values = folder / "checkpoints", [record["val_acc@1"] for record in summary["history"]]
    best = values.index(max(values))
    assert {path.name for path in kept.iterdir()} == {"best.pt", "_best_meta.json", "last.pt", "epoch_000.pt", "epoch_001.pt"}
    assert store.read_json(kept / "_best_meta.json") == {
        "best_value": max(values), "epoch": best, "monitor": "val_acc@1", "mode": "max", "best_ckpt": "best.pt"}
    assert same(weights.load(kept / f"epoch_00{best}.pt"), weights.load(kept / "best.pt"))
    assert build(TrainConfig, store.read_json(folder / "train_config.json"), "again") == config
    assert {name.replace("test_", "val_") for name in summary["test"]} < summary["history"][0].keys()
    rows = store.read(folder / "profile.csv", "profile")
    assert rows.groupby("split", sort=False)["batch_size"].sum().to_dict() == {"train": 96, "val": 96, "test": 48}
    assert rows[rows["split"] == "train"]["global_step"].tolist() == list(range(6))
    assert len(list((folder / "figures").glob("test_*.png"))) == 2
    assert f"best val_acc@1 {max(values):.4g} in epoch {best + 1} of 2; on test " in capsys.readouterr().out
    assert finetune.finetune(config, resume=True) == summary, "what has ended is not trained again"


def test_a_run_that_was_killed_holds_its_folder_until_its_workers_are_gone(home, tmp_path):
    held = threading.Event()

    def hold():
        with locks.writer(tmp_path / "run"):
            held.set()
            time.sleep(0.3)

    threading.Thread(target=hold).start()
    held.wait()
    assert trained(tmp_path / "run")["epochs"] == 1


def job(checks=None):
    """Return what a worker gives a task, which is stopped after so many checks."""
    return Mock(device="cpu[0-1]", threads=1, member=Member(), check=Mock(side_effect=checks and [None] * checks + [Stopped]))


def test_a_run_as_a_task_reports_stops_and_goes_on_in_its_folder(home, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_SHARE", 0.0)
    folder, config, work = tmp_path / "cut", {**SMALL, "epochs": 2, "checkpoint_steps": 2}, job()
    with pytest.raises(Stopped):
        task.finetune(job(7), config, str(folder))
    assert last(folder)["position"]["epoch"] == 1 and last(folder)["position"]["batch"] == 1, "of 2 batches"
    with refused(r"holds a run of another config \(other: epochs\); name another folder"):
        trained(folder, epochs=3, checkpoint_steps=2)
    assert len(task.finetune(work, config, str(folder))["history"]) == 2
    metrics = [json.loads(json.dumps(told.args[0], allow_nan=False))["metrics"] for told in work.report.call_args_list]
    assert [one["split"] for one in metrics if "split" in one] == ["val", "test"], "the first epoch was done before"
    assert all({"step", "epoch", "epochs", "loss", "lr"} <= one.keys() for one in metrics if "split" not in one)
    with refused("config: .*lr"):
        task.finetune(job(), {**config, "lr": 0}, str(folder))
    (folder / "summary.json").unlink()
    weights.save({**last(folder), "random": [{}]}, folder / "checkpoints/last.pt")
    with refused("is no checkpoint of this run"):
        task.finetune(job(), config, str(folder))


def test_each_process_resumes_with_its_own_sums_and_all_with_the_best_of_the_first(tmp_path, monkeypatch):
    told, trainer = {}, Mock(options=Options(CPU), state=dict)
    monkeypatch.setattr(Processes, "gathered", lambda one, value: [told.setdefault(one.rank, value), told.get(1)])
    positions = [checkpoints.Position(batch=3, loss=1.5 + rank, samples=7 - rank, best=0.5) for rank in (0, 1)]
    saved = [checkpoints.Checkpoints(tmp_path, small(), Processes(rank, 2)) for rank in (0, 1)]
    for rank in (1, 0):
        saved[rank].save(trainer, positions[rank])
    assert [one.resume(trainer) for one in saved] == positions


def test_a_disk_that_is_full_while_saving_keeps_the_older_checkpoint(home, tmp_path):
    with pytest.raises(Stopped):
        task.finetune(job(8), {**SMALL, "epochs": 2}, str(tmp_path))
    profile, kept = tmp_path / "profile.csv", tmp_path / "checkpoints/last.pt"
    before, rows = kept.read_bytes(), profile.read_bytes()
    profile.write_bytes(rows[:rows.rindex(b"\n", 0, len(rows) // 2) + 1])
    with refused("profile.csv lacks rows: it has fewer than the . of its checkpoint"):
        trained(tmp_path, epochs=2)
    profile.write_bytes(rows)
    with full_disk(300_000), refused(r"\.pt: cannot be written .*what was written before is kept"):
        trained(tmp_path, epochs=2)
    assert kept.read_bytes() == before and not list(tmp_path.rglob("*.partial"))
    assert len(trained(tmp_path, epochs=2)["history"]) == 2


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(home, tmp_path, monkeypatch):
    factors = iter([1.0] * 6 + [math.nan] * 9)  # two steps and an evaluation of an epoch take six

    class Bad(torch.nn.CrossEntropyLoss):
        def forward(self, logits, targets):
            return super().forward(logits, targets) * next(factors)

    monkeypatch.setitem(losses.LOSSES, "bad", (False, Bad))
    with refused(r"the loss is nan at step 3 \(epoch 1, lr .*\): training stops"):
        trained(tmp_path, loss_name="bad", epochs=3)
    history = store.read(tmp_path / "history.csv", "history")
    assert np.isfinite(history.loc[history["name"] == "train/step_loss", "value"]).tolist()[:4] == [True] * 3 + [False]
    assert all(torch.isfinite(value).all() for value in last(tmp_path)["model"].values())
    assert last(tmp_path)["position"]["epoch"] == 1


def test_weights_that_are_no_number_after_the_last_step_end_no_run_well(home, tmp_path, monkeypatch):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].data.fill_(math.nan)

    monkeypatch.setattr(optimization, "optimizer", lambda config, model: Broken(model.parameters(), lr=1.0))
    with refused("val_acc@1 is no number after any epoch"):
        trained(tmp_path, batch_size=64, max_datapoints_per_class=4)
    assert not (tmp_path / "summary.json").exists()


def test_the_energy_of_an_epoch_is_that_of_all_processes(home, tmp_path, monkeypatch):
    class Twice(Processes):
        def gathered(self, value):
            return [value, value]

    monkeypatch.setattr(run, "open_meter", lambda device: SimpleNamespace(  # fine enough for an epoch of any machine
        name="ten watts", reason="", period_s=0.002, power_w=lambda: 10.0, counter_j=lambda: time.perf_counter() * 10))
    for number, (together, times) in enumerate(((Processes(), 1), (Twice(), 2), (Twice(0, 1, local_rank=1), 0))):
        record, = run.train(small(profile=False), tmp_path / str(number), CPU, 1, together=together)["history"]
        assert record["energy_j"] == pytest.approx(times * 10 * record["train_s"], rel=0.2)


def test_out_of_memory_is_one_line(home, monkeypatch):
    monkeypatch.setattr(run, "train", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")))
    with refused("scratch: out of memory; a smaller batch_size with more grad_accum_steps takes less"):
        finetune.finetune(small())


def test_several_configs_by_name_some_of_which_are_wrong_and_leave_no_folder(home, monkeypatch):
    wrong = [{"root": "nowhere"}, {"model_flavour": "no_such"}]
    table = {f"bad{number}": small(**changes) for number, changes in enumerate(wrong)} | {"good": small(device="cuda:9")}
    monkeypatch.setattr(run_config, "load_configs", lambda: table)
    status, out, error = called("finetune", "all", "--device", "cpu")
    assert status == 2 and "error: bad0: root 'nowhere'" in error and error.count("error: ") == len(wrong)
    assert "epoch 1/1: train loss" in out and len(list(paths.TRAINING.glob("*/[!.]*"))) == 1
    assert "no config 'none' in params/training.yaml; there are: all, bad0, " in refusal("finetune", "none")
    refusal("finetune")


def test_several_labels_focal_loss_and_bf16(home, tmp_path):
    summary = trained(tmp_path, root="synthetic:chestmnist", loss_name="focal", autocast_dtype="bf16",
                      monitor_metric="val_auroc_macro", batch_size=128, max_datapoints_per_class=60)
    assert math.isfinite(summary["history"][0]["train_loss"])
    assert 0.3 < summary["best_value"] < 0.8


# ------------------------------------------------------------------------------------------------- processes

@pytest.fixture(scope="module")
def in_a_worker():
    """Return what calls a function in a process like that of a job, which finds this module imported."""
    forkserver._forkserver._stop()
    yield lambda home, function, *arguments: call(_at_home, home, function, *arguments, imported=("tests.test_finetune",))
    forkserver._forkserver._stop()


def _at_home(home, function, *arguments):
    vars(paths).update(home_paths(home))
    return function(*arguments)


@pytest.mark.parametrize("runs", [1, nightly(8)])
def test_runs_that_are_killed_end_as_those_that_are_not_bit_for_bit(home, in_a_worker, runs):
    outcome = in_a_worker(home, cut_training.run, runs, 10)
    assert outcome["wrong"] == [] and sum(outcome["reached"].values()) == runs
    assert any(batches % 7 for batches in outcome["reached"]), "some were killed within an epoch"


def _with_workers(folder, workers):
    trained(folder, num_workers=workers, cpu_color_jitter=True, persistent_workers=workers > 0, epochs=2)


def test_workers_of_the_loader_change_nothing_also_in_a_worker_of_a_job(home, in_a_worker):
    _with_workers(home / "none", 0)
    in_a_worker(home, _with_workers, home / "two", 2)
    assert same(last(home / "none")["model"], last(home / "two")["model"])


class _Statistics(torch.nn.Module):
    """A model with running statistics, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm2d(1), torch.nn.Linear(4, 2)
        self.mask_token = torch.nn.Parameter(torch.zeros(3))

    def forward(self, inputs):
        return self.head(self.norm(inputs).flatten(1))


def one_of_two(place):
    """Fine-tune as one of two processes; train with running statistics, and share them; measure a part of some splits."""
    main.main(["finetune", "--config", f"{place}/config.json"])
    both = Processes(int(os.environ["RANK"]), 2)
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=both.rank, world_size=2)
    torch.manual_seed(0)
    of = SimpleNamespace(shape=(1, 2, 2), model=_Statistics, loss=torch.nn.CrossEntropyLoss, targets=lambda labels: labels)
    trainer = Trainer(of, Options(CPU), Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
                                               parallel=both.parallel))
    trainer.train([(torch.full((4, 1, 2, 2), 1.0 + both.rank) + torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]))] * 3)
    before = trainer.model.norm.running_mean.item()
    both.share_statistics(trainer.model)
    weights.save({"before": before, "after": trainer.model.norm.running_mean.item(), "measured": gathered(PARTS[both.rank]),
                  "head": trainer.model.head.weight.detach()}, Path(place) / f"{both.rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return what two processes, which torchrun starts, print and leave in a folder."""
    place = tmp_path_factory.mktemp("two")
    (place / "config.json").write_text(json.dumps(TWO))
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", __name__, place,
                  LIB_OUTPUT=str(place))
    return SimpleNamespace(place=place, printed=done.stdout)


TWO = {**SMALL, "batch_size": 15, "grad_accum_steps": 2, "max_datapoints_per_class": 38, "epochs": 2}


def test_two_processes_learn_what_one_does(home, two):
    assert two.printed.count("epoch 1/2") == 1, "one process writes"
    trained(home, **TWO)
    folder = two.place / "data/training/breastmnist/simple_cnn__cross_entropy__scratch"
    assert store.read(folder / "profile.csv", "profile")["batch_size"].max() == 8, "of 15; also where it is evaluated"
    alone, together = last(home), last(folder)
    for name, value in alone["model"].items():
        torch.testing.assert_close(together["model"][name], value, rtol=1e-4, atol=1e-6)
    for record, other in zip(alone["position"]["history"], together["position"]["history"], strict=True):
        for name in set(record) - {"train_s", "images_per_sec", "energy_j"}:
            assert other[name] == pytest.approx(record[name], rel=1e-4, nan_ok=True)


def test_two_processes_train_what_is_used_share_statistics_and_measure_what_one_does(two):
    """Also where their parts of a split are of two sizes, and where one of them has no samples at all."""
    one, other = (weights.load(two.place / f"{rank}.pt") for rank in (0, 1))
    assert one["before"] != other["before"]
    assert one["before"] == one["after"] == other["after"]
    assert torch.equal(one["head"], other["head"])
    for part in (one["measured"], other["measured"]):
        assert part == [[pytest.approx(values), *counts] for values, *counts in gathered()]


if __name__ == "__main__":
    one_of_two(sys.argv[1])
