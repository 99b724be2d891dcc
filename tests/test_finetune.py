"""Fine-tuning: what a config says, what a run learns from and how, its folder, and what it does when it is cut short."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock, patch

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from PIL import Image
from pydantic import ValidationError

from lib import mlflow_store, paths, store
from lib.config.base import build
from lib.errors import InputError
from lib.finetune import config as run_config
from lib.finetune import data as run_data
from lib.finetune import finetune, folders, losses, models, optimization, task, train
from lib.finetune.config import TrainConfig
from lib.finetune.data import Prefetched
from lib.finetune.transforms import Inputs, Prepare
from lib.work import datasets, distributed, weights
from tests import called, cut_training, nightly, refusal, refused
from tests.conftest import full_disk
from tests.cut_training import state
from tests.killed import in_a_process

pytestmark = pytest.mark.slow

SMALL = {"root": "synthetic:breastmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "load_pretrained": False,
         "batch_size": 16, "num_workers": 0, "epochs": 1, "autocast_dtype": "fp32", "max_datapoints_per_class": 24,
         "mlflow": False}
CPU = torch.device("cpu")


class StoppedError(Exception):
    """Stops a run."""


def stop(*_):
    raise StoppedError


def small(**changes):
    return build(TrainConfig, {**SMALL, **changes}, "test")


def trained(folder, **changes):
    return train.train(small(**changes), folder, "cpu", threads=1)


def last(folder):
    return state(folder)["pytorch_model"]


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


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
    assert again.content() == config.content()
    assert "secret-123" not in f"{text} {config!r} {config}" and "hf_token" not in text


def test_all_that_is_wrong_is_told_at_once_by_field_and_never_the_token():
    wrong = {"env": {"KEY": "secret-123"},
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


@pytest.mark.parametrize("values, words", [
    ({"class_labels": ["a", "b"], "id2label": {0: "b", 1: "a"}}, "does not fit class_labels: b, a are not a, b"),
    ({"id2label": {1: "a", 2: "b"}}, "must number 2 different names from 0 to 1"),
    ({"monitor_metric": "val_loss"}, "would keep the worst val_loss; use 'min'")])
def test_what_does_not_fit_together_is_named(values, words):
    with refused(words):
        small(**values)


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


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=8, max_size=40), st.booleans(),
       st.integers(1, 4) | st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 9))
def test_a_cap_holds_for_each_class_and_no_sample_is_left_out_in_vain(rows, several, most, seed):
    labels = np.array(rows) if several else np.array(rows).sum(1, keepdims=True) % 3
    truth = labels if several else np.eye(3, dtype=int)[labels[:, 0]]
    kept = run_data.capped(labels, 3, most, seed)
    assert kept == sorted(set(kept)) == run_data.capped(labels, 3, most, seed)
    counts, left_out = truth[kept].sum(0), np.delete(truth, kept, axis=0)
    assert (counts <= most).all() and (left_out[:, counts == most] > 0).any(1).all()


def test_an_epoch_has_each_sample_once_in_an_order_of_its_own_and_no_batch_of_one():
    def epochs(samples, seed):
        prepared = distributed.accelerator("cpu", seed).prepare_data_loader(
            run_data.loader(small(batch_size=4), torch.arange(samples), True, False))
        orders = []
        for epoch in (0, 1):
            prepared.set_epoch(epoch)
            orders.append([batch.tolist() for batch in prepared])
        return orders

    first, second = epochs(10, 7)
    assert first != second and sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(10))
    assert epochs(10, 7) == [first, second] != epochs(10, 8)
    assert [len(batch) for batch in epochs(9, 7)[0]] == [4, 4], "a batch norm needs two samples"


@pytest.fixture
def folder(tmp_path):
    """Return a dataset of two classes, and a test split that lacks one of them."""
    root = cut_training.pictures(tmp_path / "pets", {"train": 6, "val": 6, "test": 6})
    shutil.rmtree(root / "test/cat")
    return root


def opened(**changes):
    config = small(**changes)
    names, facts = run_data.names_and_facts(config)
    return run_data.open_data(config, models.network(config, facts).inputs, names)


def test_a_folder_of_images_and_its_labels(folder):
    data = opened(root=str(folder), image_size=16)
    assert data.labels == ("cat", "dog") and data.data_source == "imagefolder" and small(root=str(folder)).dataset == "pets"
    assert data.splits["test"].labels.ravel().tolist() == [1] * 6, "classes are those of train, also where some are missing"
    tensor, label = data.splits["train"][0]
    assert tuple(tensor.shape) == (3, 16, 16) and label.tolist() == [0]
    mapped = opened(root=str(folder), label2id={"dog": 0, "cat": 1})
    assert mapped.labels == ("dog", "cat") and mapped.splits["train"].labels.ravel().tolist() == [1] * 6 + [0] * 6
    assert mapped.splits["train"][0][1].tolist() == [1]


def test_several_labels_of_an_image_are_in_the_order_of_the_config(home):
    usual = opened(root="synthetic:chestmnist", loss_name="bce")
    turned = opened(root="synthetic:chestmnist", loss_name="bce", class_labels=[*usual.labels[3:], *usual.labels[:3]])
    before, after = (data.splits["val"].labels for data in (usual, turned))
    number = int((before != after).any(1).argmax())
    assert turned.splits["val"][number][1].tolist() == after[number].tolist() == np.roll(before[number], -3).tolist()


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


@pytest.mark.cuda
def test_batches_arrive_whole_on_a_gpu():
    batches = [(torch.full((256, 1024), float(number)).pin_memory(),) for number in range(20)]
    for number, (part,) in enumerate(Prefetched(batches, torch.device("cuda:0"))):
        product = part @ part.T
        assert torch.equal(product.cpu(), torch.full((256, 256), 1024.0 * number**2))


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


COLOURS = datasets.Facts(3, 9, 2, False, (0, 0, 0))


def built(labels, **changes):
    return models.network(small(**changes), COLOURS).build(tuple(labels))


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
        return models.network(small(model_flavour=where, **changes), COLOURS).inputs

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
    network = models.network(small(model_flavour=name, load_pretrained=True, freeze_backbone=True), COLOURS)
    assert network.inputs.size == 224 and network.inputs.mean[0] == 0.485
    loaded = network.build(("a", "b"))
    assert torch.equal(loaded.conv5[0].weight, model.conv5[0].weight)
    assert [p.shape for p in loaded.parameters() if p.requires_grad] == [(2, 1024), (2,)]
    torch.save({"fc.weight": _Harmful()}, kept)
    with refused("its weights cannot be had .*[Ww]eights.only"):
        network.build(("a", "b"))


def test_a_run_from_config_to_folder(home, capsys):
    config = small(save_per_epoch_checkpoint=True, epochs=2)
    summary = finetune.finetune(config)
    folder = paths.TRAINING / "breastmnist/simple_cnn__cross_entropy__scratch"
    assert summary == store.read_json(folder / "summary.json")
    kept, values = folder / "checkpoints", [record["val_acc@1"] for record in summary["history"]]
    best = values.index(max(values))
    assert {path.name for path in kept.iterdir()} == {"best.pt", "_best_meta.json", "state-000002-00000000", "epoch_000.pt",
                                                      "epoch_001.pt"}
    assert store.read_json(kept / "_best_meta.json") == {
        "best_value": max(values), "epoch": best, "monitor": "val_acc@1", "mode": "max", "best_ckpt": "best.pt"}
    assert same(weights.load(kept / f"epoch_00{best}.pt"), weights.load(kept / "best.pt"))
    assert build(TrainConfig, store.read_json(folder / "train_config.json"), "again") == config
    assert {name.replace("test_", "val_") for name in summary["test"]} < summary["history"][0].keys()
    rows = store.read(folder / "profile.csv", "profile")
    assert rows.groupby("split", sort=False)["batch_size"].sum().to_dict() == {"train": 96, "val": 96, "test": 48}
    assert rows[rows["split"] == "train"]["global_step"].tolist() == list(range(6))
    assert len(list((folder / "figures").glob("test_*.png"))) == 2
    printed = capsys.readouterr().out
    assert f"best val_acc@1 {max(values):.4g} in epoch {best + 1} of 2; on test " in printed
    assert "eval_topk 3, 5 left out: there are 2 classes\n" in printed
    assert (folder / "log.txt").read_text() in printed and "epoch 2/2: train loss" in (folder / "log.txt").read_text()
    assert finetune.finetune(config, resume=True) == summary, "what has ended is not trained again"


def test_a_run_is_logged_to_mlflow_once_also_where_it_resumes(home, tmp_path, monkeypatch):
    folder, client = tmp_path / "run", MlflowClient(mlflow_store.store_uri())
    with pytest.raises(StoppedError):
        train.train(small(mlflow=True, epochs=2), folder, "cpu", 1, stop)
    run = client.get_run((folder / "mlflow_run_id").read_text())
    assert run.info.run_name == "run" and run.info.status == "FAILED" and run.data.params["epochs"] == "2"
    summary = trained(folder, mlflow=True, epochs=2)
    run = client.get_run((folder / "mlflow_run_id").read_text())
    assert client.get_experiment(run.info.experiment_id).name == "breastmnist" and run.info.status == "FINISHED"
    assert run.data.metrics["test/loss"] == pytest.approx(summary["test"]["test_loss"])
    seen = client.get_metric_history(run.info.run_id, "val/acc_at_1")
    assert [value.value for value in seen] == [record["val_acc@1"] for record in summary["history"]]
    monkeypatch.setattr(MlflowClient, "set_terminated", Mock(side_effect=OSError(28, "No space left on device")))
    assert trained(tmp_path / "full", mlflow=True)["epochs"] == 1
    assert "not logged in MLflow, but in history.csv: OSError: [Errno 28] No space" in (tmp_path / "full/log.txt").read_text()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none.db")
    with refused("MLflow's store sqlite:////proc/none.db cannot be used: .*set mlflow to false"):
        trained(tmp_path / "other", mlflow=True)


def test_a_run_as_a_task_stops_and_goes_on_in_its_folder(home, tmp_path, monkeypatch):
    folder, config = tmp_path / "cut", {**SMALL, "epochs": 2}
    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(train.Run, "finish", stop)
        task.finetune(config, str(folder), ["cpu"], 1)
    with refused(r"holds a run of another config \(other: epochs\); name another folder"):
        trained(folder, epochs=3)
    with refused("config: .*lr"):
        task.finetune({**config, "lr": 0}, str(folder), ["cpu"], 1)
    progress = distributed.states(folder / "checkpoints")[-1] / "progress.json"
    before = store.read_json(progress)
    store.write_json({**before, "processes": 2}, progress)
    with refused("state-000002-00000000 is of 2 processes, not 1; resume with as many"):
        task.finetune(config, str(folder), ["cpu"], 1)
    progress.write_text("{")
    with refused("progress.json is not readable JSON"):
        task.finetune(config, str(folder), ["cpu"], 1)
    store.write_json(before, progress)
    generators = progress.with_name("random_states_0.pkl")
    content = generators.read_bytes()
    for damaged in (content[:99], b""):
        generators.write_bytes(damaged)
        with refused("state-000002-00000000 is no state of this run"):
            task.finetune(config, str(folder), ["cpu"], 1)
    generators.write_bytes(content)
    assert len(task.finetune(config, str(folder), ["cpu"], 1)["history"]) == 2
    monkeypatch.setattr(distributed, "torchrun", Mock())
    task.finetune(config, str(folder), ["cpu", "cpu"], 3)
    distributed.torchrun.assert_called_once_with(
        "lib.finetune.task:finetune", {"config": config, "folder": str(folder)}, ["cpu", "cpu"], 3)


def test_a_disk_that_is_full_while_saving_keeps_the_older_state(home, tmp_path):
    with pytest.raises(StoppedError):
        train.train(small(epochs=2), tmp_path, "cpu", 1, stop)
    before = last(tmp_path)
    profile = tmp_path / "profile.csv"
    rows = profile.read_bytes()
    profile.write_bytes(rows[:rows.rindex(b"\n", 0, len(rows) // 2) + 1])
    with refused("profile.csv lacks rows: it has fewer than the 6 of its state"):
        trained(tmp_path, epochs=2)
    profile.write_bytes(rows)
    with full_disk(300_000), refused("cannot be written .*what was written before is kept"):
        trained(tmp_path, epochs=2)
    assert same(last(tmp_path), before) and not list(tmp_path.rglob("*.partial"))
    assert len(trained(tmp_path, epochs=2)["history"]) == 2


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(home, tmp_path, monkeypatch):
    factors = iter([1.0] * 9 + [math.nan] * 9)  # three steps and an evaluation, which takes each loss twice

    class Bad(torch.nn.CrossEntropyLoss):
        def forward(self, logits, targets):
            return super().forward(logits, targets) * next(factors)

    monkeypatch.setitem(losses.LOSSES, "bad", Bad)
    with refused(r"the loss is nan at step 3 \(epoch 1, lr .*\): training stops"):
        trained(tmp_path, loss_name="bad", epochs=3)
    history = store.read(tmp_path / "history.csv", "history")
    assert np.isfinite(history.loc[history["name"] == "train/step_loss", "value"]).tolist()[:4] == [True] * 3 + [False]
    assert all(torch.isfinite(value).all() for value in last(tmp_path).values())
    assert [path.name for path in distributed.states(tmp_path / "checkpoints")] == ["state-000001-00000000"]


def test_an_epoch_has_the_energy_of_a_known_power(home, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "open_meter", lambda device: SimpleNamespace(  # fine enough for an epoch of any machine
        name="ten watts", reason="", period_s=0.002, power_w=lambda: 10.0, counter_j=lambda: time.perf_counter() * 10))
    record, = trained(tmp_path, profile=False)["history"]
    assert record["energy_j"] == pytest.approx(10 * record["train_s"], rel=0.2)


def test_out_of_memory_is_one_line(home, monkeypatch):
    monkeypatch.setattr(train, "Run", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")))
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
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    assert "error: bad0: root 'nowhere'" in refusal("finetune", "all"), "several processes all stop: one may wait for another"
    refusal("finetune")


def test_several_labels_focal_loss_and_bf16(home, tmp_path):
    summary = trained(tmp_path, root="synthetic:chestmnist", loss_name="focal", autocast_dtype="bf16",
                      monitor_metric="val_auroc_macro", batch_size=128, max_datapoints_per_class=60)
    assert math.isfinite(summary["history"][0]["train_loss"])
    assert 0.3 < summary["best_value"] < 0.8


@pytest.mark.parametrize("runs", [2, nightly(8)])
def test_runs_that_are_killed_end_as_those_that_are_not(home, runs):
    """After an epoch bit for bit; within an epoch with the same batches."""
    outcome = in_a_process("tests.cut_training", runs, 10)
    assert outcome["wrong"] == [] and sum(outcome["reached"].values()) == runs
    assert any(not name.endswith("-00000000") for name in outcome["reached"]), "some were killed within an epoch"


def test_workers_of_the_loader_change_nothing(home):
    for workers in (0, 2):
        trained(home / str(workers), num_workers=workers, persistent_workers=workers > 0)
    assert same(last(home / "0"), last(home / "2"))


def cut_and_resumed(config, folder, devices, threads):
    """Fine-tune until the first state is saved, then resume in the same process; return the summary."""
    save = distributed.save_state

    def save_and_stop(*arguments):
        save(*arguments)
        raise StoppedError

    with patch.object(distributed, "save_state", save_and_stop), contextlib.suppress(StoppedError):
        task.finetune(config, folder, devices, threads)
    return task.finetune(config, folder, devices, threads)


def test_two_processes_learn_what_one_does_also_where_they_resume_and_say_why_they_cannot(home, capfd):
    """Two states per epoch; val and test, of 78 and 156 samples, cannot be shared equally."""
    config = {**SMALL, "grad_accum_steps": 2, "max_datapoints_per_class": 40, "capped_splits": ["train"], "epochs": 2,
              "checkpoint_steps": 1}
    alone = trained(home / "one", **config)
    arguments = {"config": config, "folder": str(home / "two")}
    together = distributed.torchrun("tests.test_finetune:cut_and_resumed", arguments, ["cpu", "cpu"], 1)
    assert capfd.readouterr().out.count("epoch 1/2") == 2, "of two processes one writes"
    assert store.read(home / "two/profile.csv", "profile")["batch_size"].max() == 8, "of 16; also where it is evaluated"
    for name, value in last(home / "one").items():
        torch.testing.assert_close(last(home / "two")[name], value, rtol=1e-4, atol=1e-6)
    for record, other in zip(alone["history"], together["history"], strict=True):
        for name in set(record) - {"train_s", "images_per_sec", "energy_j"}:
            assert other[name] == pytest.approx(record[name], rel=1e-4, nan_ok=True)
    assert together["test"] == pytest.approx(alone["test"], rel=1e-4, nan_ok=True)
    with refused("batch_size 15 cannot be shared by 2 processes; choose a multiple"):
        train.Run(small(batch_size=15), home / "three", CPU, Mock(num_processes=2))


def sleep(seconds, devices, threads):
    """A task that takes a while."""
    time.sleep(seconds)


def test_the_processes_of_torchrun_end_with_the_one_that_started_it():
    code = ("from lib.work import distributed; "
            "distributed.torchrun('tests.test_finetune:sleep', {'seconds': 600}, ['cpu', 'cpu'], 1)")
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=paths.ROOT)
    while len(children := psutil.Process(parent.pid).children(recursive=True)) < 3:
        time.sleep(0.1)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_weights_that_are_no_number_after_the_last_step_end_no_run_well(home, tmp_path, monkeypatch):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].data.fill_(math.nan)

    monkeypatch.setattr(optimization, "optimizer", lambda config, model: Broken(model.parameters(), lr=1.0))
    with refused("val_acc@1 is no number after any epoch"):
        trained(tmp_path, batch_size=64, max_datapoints_per_class=4)
    assert not (tmp_path / "summary.json").exists()


def test_the_energy_of_an_epoch_is_that_of_all_processes(home, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "open_meter", lambda device: SimpleNamespace(  # fine enough for an epoch of any machine
        name="ten watts", reason="", period_s=0.002, power_w=lambda: 10.0, counter_j=lambda: time.perf_counter() * 10))
    sums = distributed.gathered_sums
    for processes, first_here, times in ((1, True, 1), (2, True, 2), (2, False, 0)):  # one process of a machine meters it
        monkeypatch.setattr(distributed, "gathered_sums", lambda values, n=processes: [n * value for value in sums(values)])
        with patch("accelerate.Accelerator.is_local_main_process", PropertyMock(return_value=first_here)):
            record, = trained(tmp_path / f"{processes}{first_here}", profile=False)["history"]
        assert record["energy_j"] == pytest.approx(times * 10 * record["train_s"], rel=0.2)
