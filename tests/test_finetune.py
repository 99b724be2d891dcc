"""Fine-tuning: what a config says, what a run learns from and how, its folder, and what it does when it is cut short."""

import copy
import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lib import locks, paths, store
from lib.cli import main
from lib.config.base import build
from lib.errors import InputError
from lib.finetune import config as run_config
from lib.finetune import data as run_data
from lib.finetune import finetune, networks, optimization, run, task
from lib.finetune.checkpoints import Checkpoints, Position
from lib.finetune.config import TrainConfig
from lib.finetune.devices import Prefetched, Processes
from lib.finetune.transforms import Inputs, Prepare, gpu_augmentation
from lib.measure.worker import call
from lib.schedule.runtime.worker_process import Stopped
from lib.work import datasets, losses, weights
from lib.work.training import Batch, Options, Recipe, Trainer, Unobserved
from tests import cut_training, killed
from tests.conftest import full_disk

SMALL = {"root": "synthetic:breastmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "load_pretrained": False,
         "batch_size": 16, "num_workers": 0, "epochs": 1, "autocast_dtype": "fp32", "max_datapoints_per_class": 24}
FIELDS = """root model_flavour loss_name batch_size num_workers prefetch_factor persistent_workers epochs optimizer lr
    weight_decay max_grad_norm warmup_ratio grad_accum_steps seed autocast_dtype load_pretrained run_name tb_root eval_topk
    model_suffix freeze_backbone ckpt_dir monitor_metric monitor_mode save_per_epoch_checkpoint
    max_datapoints_per_class""".split()
DEFAULTS = [256, 4, 4, False, 10, "adam", 1e-3, 0.05, 1.0, 0.05, 1, 42, "torch.bfloat16", True, None, "runs", (3, 5), "", False,
            "checkpoints", "val_acc@1", "max", False, 10_000]


def small(**changes):
    return build(TrainConfig, {**SMALL, **changes}, "test")


def trained(folder, **changes):
    return run.train(small(**changes), folder, torch.device("cpu"), threads=1)


def last(folder):
    return weights.load(folder / "checkpoints" / "last.pt")


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


# ------------------------------------------------------------------------------------------------- config

def test_the_fields_of_the_original_in_their_order_with_their_defaults():
    names = list(TrainConfig.model_fields)
    assert names[:27] == FIELDS
    assert set(names[27:33]) == {"hf_token", "gpu_batch_aug", "cpu_color_jitter", "class_labels", "label2id", "id2label"}
    config = TrainConfig(root="x", model_flavour="y", loss_name="cross_entropy")
    assert [getattr(config, name) for name in FIELDS[3:]] == DEFAULTS


@settings(max_examples=50, deadline=None)
@given(st.fixed_dictionaries({}, optional={
    "batch_size": st.integers(1, 10**6), "lr": st.floats(1e-9, 10), "eval_topk": st.lists(st.integers(1, 9), max_size=3),
    "autocast_dtype": st.sampled_from(["bf16", "float16", "torch.float32"]), "run_name": st.none() | st.just("a b"),
    "max_datapoints_per_class": st.integers(1, 99) | st.lists(st.integers(1, 99), min_size=1, max_size=3),
    "class_labels": st.none() | st.just(["cat", "dog"]), "label2id": st.just({"cat": 0, "dog": 1}),
    "id2label": st.just({"0": "cat", "1": "dog"}), "hf_token": st.just("secret-123")}))
def test_json_out_and_in_is_the_same_config(values):
    config = build(TrainConfig, {**SMALL, **values}, "test")
    text = json.dumps(config.content())
    again = build(TrainConfig, json.loads(text), "test")
    assert again.content() == config.content()
    assert again.hash == config.hash == build(TrainConfig, dict(reversed(json.loads(text).items())), "test").hash
    assert "secret-123" not in f"{text} {config!r} {config}"


def test_all_that_is_wrong_is_told_at_once_by_field_and_never_the_token():
    wrong = {"model_flavour": " ", "loss_name": "lossy", "lr": -1, "epochs": True, "monitor_metric": "val_luck",
             "tb_root": "../up", "autocast_dtype": "int8", "hf_token": ["secret-123"], "label2id": {"a": 0, "b": 2},
             "unknown": 1, "max_datapoints_per_class": 0}
    problems = run_config.problems(wrong)
    assert {name.partition(".")[0] for name in problems} == {*wrong, "root"} - {"hf_token"}
    assert "cross_entropy, label_smoothing" in problems["loss_name"]
    assert "val_f1_macro" in problems["monitor_metric"]
    with pytest.raises(InputError) as error:
        build(TrainConfig, wrong, "test")
    assert "secret-123" not in str(error.value)
    assert run_config.problems(SMALL) == {}


@pytest.mark.parametrize(("values", "words"), [
    ({"class_labels": ["a", "a"]}, "names a class twice"),
    ({"class_labels": ["a", "b"], "id2label": {0: "b", 1: "a"}}, "does not fit class_labels: b, a are not a, b"),
    ({"label2id": {"a": 0, "b": 1}, "id2label": {0: "b", 1: "a"}}, "does not fit label2id"),
    ({"id2label": {1: "a", 2: "b"}}, "must number 2 different names from 0 to 1"),
    ({"monitor_metric": "val_loss"}, "would keep the worst val_loss; use 'min'"),
    ({"monitor_metric": "val_f1_macro", "monitor_mode": "min"}, "would keep the worst val_f1_macro; use 'max'"),
    ({"monitor_metric": "val_acc@7"}, "is not measured"),
    ({"ckpt_dir": "/etc"}, "ckpt_dir"),
])
def test_what_does_not_fit_together_is_named(values, words):
    with pytest.raises(InputError, match=words):
        small(**values)


def test_configs_by_name(tmp_path):
    assert {"cnn", "vit"} <= set(run_config.load_configs())
    for text, words in (("configs: {a: {root: x}}", "a: model_flavour is missing; loss_name is missing"), ("a: 1", "configs"),
                        ("configs: {'../a': {root: x, model_flavour: y, loss_name: bce}}", "'../a' is no name")):
        (tmp_path / "training.yaml").write_text(text)
        with pytest.raises(InputError, match=words):
            run_config.load_configs(tmp_path / "training.yaml")


# ------------------------------------------------------------------------------------------------- names

def test_names_of_runs_and_their_versions(home):
    assert finetune.run_name(small()) == "simple_cnn__cross_entropy__scratch"
    hub = small(model_flavour="google/vit-base", load_pretrained=True, model_suffix="-long run")
    assert finetune.run_name(hub) == "google_vit-base__cross_entropy__pretrained-long_run"
    assert finetune.run_name(small(run_name="../../etc")) == "etc"
    folders = [finetune.new_folder(small()).name for _ in range(3)]
    assert folders == ["simple_cnn__cross_entropy__scratch" + end for end in ("", "-v1", "-v2")]
    assert finetune.newest(small()).name.endswith("-v2")
    assert finetune.newest(small(epochs=9)) is None
    assert finetune.new_folder(small()).parent == paths.TRAINING / "breastmnist"


def test_runs_that_begin_at_the_same_moment_get_folders_of_their_own(home):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(finetune.new_folder, [small()] * 24))
    assert len(set(folders)) == 24


# ------------------------------------------------------------------------------------------------- data

@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 9) | st.tuples(*[st.integers(1, 9)] * 4),
       st.integers(0, 9))
def test_a_cap_keeps_as_many_of_a_class_as_it_may(classes, most, seed):
    labels = np.array(classes)[:, None]
    kept = run_data.capped(labels, 4, most, seed)
    caps = [most] * 4 if isinstance(most, int) else most
    assert kept == sorted(set(kept)) == run_data.capped(labels, 4, most, seed)
    for number, cap in enumerate(caps):
        assert sum(classes[index] == number for index in kept) == min(cap, classes.count(number))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=1, max_size=40), st.integers(1, 5))
def test_a_cap_holds_for_each_of_several_labels_and_no_sample_is_left_out_in_vain(rows, most):
    labels = np.array(rows)
    kept = run_data.capped(labels, 3, most, 0)
    counts = labels[kept].sum(0)
    assert (counts <= most).all()
    for index in set(range(len(rows))) - set(kept):
        assert (counts[labels[index] > 0] == most).any()


def test_a_cap_of_another_number_of_classes_is_refused():
    with pytest.raises(InputError, match="max_datapoints_per_class has 2 numbers, but there are 3 classes"):
        run_data.capped(np.zeros((4, 1)), 3, (1, 2), 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5))
def test_batches_are_a_function_of_seed_and_epoch_whatever_the_processes(total, size, accumulate, count, first):
    def batches(rank=0, count=1, begin=0):
        sampler = run_data.Batches(range(100, 100 + total), size, accumulate, 7, Processes(rank, count))
        sampler.begin(3, begin)
        assert len(list(sampler)) == len(sampler)
        return sampler, list(sampler)

    sampler, whole = batches()
    assert sorted(index for batch in whole for _, index in batch) == list(range(100, 100 + total))
    assert {epoch for batch in whole for epoch, _ in batch} == {3}
    assert min(map(len, whole)) > 1 or total == 1 or size == 1
    first = min(first, len(whole))
    assert batches(begin=first)[1] == whole[first:]
    shares = [batches(rank, count) for rank in range(count)]
    for number, batch in enumerate(whole):
        parts = [(one.weight(number), of_rank[number]) for one, of_rank in shares]
        assert [one.own(number) for one, _ in shares] == [len(part) if weight else 0 for weight, part in parts]
        assert sum(one.own(number) for one, _ in shares) == len(batch)
        assert sorted(key for weight, part in parts if weight for key in part) == sorted(batch)
        assert all(part for _, part in parts)
    for start in range(0, len(whole), accumulate):
        group = range(start, min(start + accumulate, len(whole)))
        samples = sum(len(whole[number]) for number in group)
        for one, of_rank in shares:  # the mean over processes of weighted mean losses weighs each sample alike
            for number in group:
                weight = one.weight(number)
                assert not weight or math.isclose(weight / count / len(of_rank[number]), 1 / samples)


def test_epochs_and_seeds_differ():
    orders = set()
    for seed in (1, 2):
        sampler = run_data.Batches(range(30), 30, 1, seed)
        for epoch in (0, 1):
            sampler.begin(epoch)
            orders.add(tuple(index for _, index in next(iter(sampler))))
    assert len(orders) == 4


@pytest.fixture
def folder(tmp_path):
    """Return a dataset of two classes, six pictures each, and a test split that lacks one of them."""
    draw = np.random.default_rng(0)
    for split, classes in (("train", "cat dog"), ("val", "cat dog"), ("test", "dog")):
        for name in classes.split():
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for number in range(6):
                picture = Image.fromarray(draw.integers(0, 255, (20, 30, 3), np.uint8))
                picture.save(tmp_path / "pets" / split / name / f"{number}.png")
    return tmp_path / "pets"


def opened(**changes):
    config = small(**changes)
    names, facts = run_data.names_and_facts(config)
    return run_data.open_data(config, networks.network(config, facts).inputs, names)


def test_a_folder_of_images_and_its_labels(folder):
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    data = opened(root=str(folder), image_size=16)
    assert (data.labels, data.dataset, data.data_source) == (("cat", "dog"), "pets", "imagefolder")
    assert data.splits["test"].labels.ravel().tolist() == [1] * 6, "classes are those of train, also where some are missing"
    tensor, label = data.splits["train"][0, 0]
    assert (tuple(tensor.shape), label.tolist()) == ((3, 16, 16), [0])
    mapped = opened(root=str(folder), label2id={"dog": 0, "cat": 1})
    assert mapped.labels == ("dog", "cat")
    assert mapped.splits["train"].labels.ravel().tolist() == [1] * 6 + [0] * 6
    assert mapped.splits["train"][0, 0][1].tolist() == [1]
    assert opened(root=str(folder), class_labels=["Felis", "Canis"]).labels == ("Felis", "Canis")


def test_labels_of_which_a_sample_has_several_are_mapped_by_column():
    names = ("a", "b", "c")
    _, order = run_data._labels(small(class_labels=["c", "a", "b"]), names)
    pictures = SimpleNamespace(transform=None, labels=np.array([[1, 0, 0], [0, 1, 1]]))
    assert run_data.Samples(pictures, 0, order).labels.tolist() == [[0, 1, 0], [1, 0, 1]]


def test_chestmnist_with_its_labels_in_another_order(home):
    usual = opened(root="synthetic:chestmnist", loss_name="bce")
    turned = opened(root="synthetic:chestmnist", loss_name="bce", class_labels=[*usual.labels[3:], *usual.labels[:3]])
    assert (turned.splits["val"].labels == np.roll(usual.splits["val"].labels, -3, 1)).all()
    number = int(usual.splits["val"].labels.sum(1).argmax())
    assert turned.splits["val"][0, number][1].tolist() == np.roll(usual.splits["val"][0, number][1], -3).tolist()
    assert 0 < turned.splits["val"][0, number][1].sum() < len(usual.labels)


def test_labels_of_which_some_are_the_datasets_are_refused(folder):
    with pytest.raises(InputError, match=r"name some classes of .*pets \(cat\), but others than dog; name them"):
        opened(root=str(folder), class_labels=["cat", "canis"])


@pytest.mark.parametrize("name", ["cpu_color_jitter", "gpu_batch_aug"])
def test_augmentations_of_pictures_refuse_volumes(home, name):
    with pytest.raises(InputError, match="change pictures, but synthetic:nodulemnist3d holds volumes; set both to false"):
        opened(root="synthetic:nodulemnist3d", model_flavour="cnn3d", **{name: True})


def test_what_a_dataset_lacks_is_one_line(folder):
    with pytest.raises(InputError, match="name 3 classes, but .*pets has 2: cat, dog"):
        opened(root=str(folder), class_labels=["a", "b", "c"])
    (folder / "val" / "fox").mkdir()
    with pytest.raises(InputError, match="val has classes that train/ has not: fox; that has: cat, dog"):
        opened(root=str(folder))
    (folder / "val" / "fox").rmdir()
    (folder / "train" / "cat" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="picture 0 cannot be read"):
        opened(root=str(folder)).splits["train"][0, 0]
    for root, words in (("nowhere", "nowhere/train is no folder; a dataset has train/"),
                        ("synthetic:nomnist", "no dataset 'nomnist'"), (str(folder / "train"), "is no folder")):
        with pytest.raises(InputError, match=words):
            opened(root=root)


def test_pictures_are_cropped_resized_and_normalised():
    picture = Image.fromarray(np.full((20, 40, 3), 255, np.uint8))
    tensor = Prepare(Inputs(3, 10, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))(picture)
    assert torch.equal(tensor, torch.full((3, 10, 10), 2.0))
    assert Prepare(Inputs(1, 20))(picture).shape == (1, 20, 20)


def test_augmentation_is_a_function_of_seed_epoch_and_sample(home):
    def samples(seed):
        return opened(cpu_color_jitter=True, seed=seed).splits["train"]

    first, again, other = samples(1), samples(1), samples(2)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    image = first[0, 5][0]
    assert torch.equal(torch.get_rng_state(), before), "what else draws from torch's generator is not disturbed"
    torch.rand(7)
    assert torch.equal(again[0, 5][0], image)
    assert not torch.equal(again[1, 5][0], image)
    assert not torch.equal(other[0, 5][0], image)
    batch = torch.randn(4, 3, 28, 28)
    augmented = gpu_augmentation()(batch)
    assert augmented.shape == batch.shape
    assert not torch.equal(augmented, batch)


class _Streams:
    """A stand-in for torch.cuda that notes what is done on which stream."""

    def __init__(self):
        self.events, self.now = [], "compute"

    def Stream(self, device):  # noqa: N802 - torch's name
        return "copies"

    def stream(self, stream):
        streams = self

        class Context:
            def __enter__(self):
                streams.now = stream

            def __exit__(self, *_):
                streams.now = "compute"

        return Context()

    def current_stream(self, device):
        return SimpleNamespace(wait_stream=lambda other: self.events.append(("wait", other)), name=self.now)


def test_a_batch_is_copied_ahead_and_its_memory_bound_to_the_stream_that_computes():
    streams = _Streams()

    class Part:
        def __init__(self, number):
            self.number = number

        def to(self, device, non_blocking):
            assert non_blocking
            streams.events.append(("copy", self.number, streams.now))
            return self

        def record_stream(self, stream):
            streams.events.append(("record", self.number, stream.name))

    loader = Prefetched([(Part(0),), (Part(1),)], "cuda:0", streams)
    assert len(loader) == 2
    for (part,) in loader:
        streams.events.append(("compute", part.number))
    assert streams.events == [("copy", 0, "copies"), ("wait", "copies"), ("record", 0, "compute"), ("copy", 1, "copies"),
                              ("compute", 0), ("wait", "copies"), ("record", 1, "compute"), ("compute", 1)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_batches_arrive_whole_on_a_gpu():
    batches = [(torch.full((256, 1024), float(number)).pin_memory(),) for number in range(20)]
    for number, (part,) in enumerate(Prefetched(batches, torch.device("cuda:0"))):
        product = part @ part.T
        assert torch.equal(product.cpu(), torch.full((256, 256), 1024.0 * number**2))


# ------------------------------------------------------------------------------------------------- steps

def test_biases_norms_and_vectors_do_not_decay():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4, 2),
                                torch.nn.LayerNorm([2, 2]))
    model[0].requires_grad_(False)
    decayed, kept = optimization.groups(model, 0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 4)]
    assert len(kept["params"]) == 5
    with pytest.raises(InputError, match="no parameter of the model is trained"):
        optimization.groups(model.requires_grad_(False), 0.1)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_rate_is_that_of_transformers(name):
    from transformers import get_cosine_schedule_with_warmup

    model = torch.nn.Linear(2, 2)
    ours = optimization.optimizer(small(optimizer=name, lr=0.5), model)
    schedule = optimization.schedule(small(warmup_ratio=0.21), ours, 30)
    theirs = torch.optim.SGD(model.parameters(), lr=0.5)
    reference = get_cosine_schedule_with_warmup(theirs, 7, 30)
    for _ in range(31):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], abs=1e-12)
        for one in (ours, schedule, theirs, reference):
            one.step()


def test_losses_against_known_answers():
    logits, classes = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    each = torch.tensor([math.log(1 + math.exp(-2)), math.log(2)])
    assert losses.build("cross_entropy", False)(logits, classes) == pytest.approx(each.mean().item())
    assert losses.build("focal", False)(logits, classes) == pytest.approx(((1 - torch.exp(-each)) ** 2 * each).mean().item())
    bce = losses.build("bce", False)(logits, classes)
    assert bce == losses.build("bce", True)(logits, torch.tensor([[1, 0], [0, 1]]))
    assert bce == pytest.approx((math.log(1 + math.exp(-2)) + 3 * math.log(2)) / 4)
    with pytest.raises(InputError, match="'cross_entropy' takes one class an image, but these may have several; .*: bce"):
        losses.build("cross_entropy", True)


# ------------------------------------------------------------------------------------------------- networks

COLOURS = datasets.Facts(3, 9, 2, False, (0, 0, 0))


def built(labels, **changes):
    return networks.network(small(**changes), COLOURS).build(tuple(labels))


def test_a_checkpoint_of_hugging_face_gets_a_head_for_the_classes(tmp_path):
    where = cut_training.tiny_vit(tmp_path / "vit")
    scratch = built("abc", model_flavour=where)
    assert (scratch.config.id2label, scratch.config.label2id) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})
    scratch.save_pretrained(tmp_path / "trained")
    tuned = built("abcd", model_flavour=str(tmp_path / "trained"), load_pretrained=True, freeze_backbone=True)
    assert tuned(torch.zeros(2, 3, 28, 28)).logits.shape == (2, 4)
    assert same(tuned.vit.state_dict(), scratch.vit.state_dict())
    assert {name for name, p in tuned.named_parameters() if p.requires_grad} == {"classifier.weight", "classifier.bias"}


def test_the_inputs_of_a_model_are_those_of_its_image_processor(tmp_path):
    from transformers import ConvNextConfig, ConvNextImageProcessor

    ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], num_labels=2).save_pretrained(tmp_path)
    inputs = networks.network(small(model_flavour=str(tmp_path)), COLOURS).inputs
    assert (inputs.size, inputs.mean) == (224, (0.5,)), "without one: the usual"
    processor = ConvNextImageProcessor(size={"shortest_edge": 40}, image_mean=[0.1, 0.2, 0.3], image_std=[1, 1, 1])
    processor.save_pretrained(tmp_path)
    network = networks.network(small(model_flavour=str(tmp_path)), COLOURS)
    assert (network.inputs.size, network.inputs.mean) == (40, (0.1, 0.2, 0.3))
    assert networks.network(small(model_flavour=str(tmp_path), image_size=32), COLOURS).inputs.size == 32
    assert network.build(("a", "b"))(torch.zeros(1, 3, 40, 40)).logits.shape == (1, 2)


def test_models_of_torchvision_and_ours():
    frozen = built("abcd", model_flavour="mobilenet_v2", freeze_backbone=True)
    assert [p.shape for p in frozen.parameters() if p.requires_grad] == [(4, 1280), (4,)]
    inputs = networks.network(small(model_flavour="resnet18", load_pretrained=True), COLOURS).inputs
    assert (inputs.size, inputs.mean[0]) == (224, 0.485)


class _Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


def test_weights_of_torchvision_are_read_as_data(tmp_path, monkeypatch):
    from torchvision.models import get_model, get_model_weights

    name = "shufflenet_v2_x0_5"
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "checkpoints" / get_model_weights(name).DEFAULT.url.rpartition("/")[2]
    model = get_model(name)
    weights.save(model.state_dict(), kept)
    loaded = built("ab", model_flavour=name, load_pretrained=True)
    assert torch.equal(loaded.conv5[0].weight, model.conv5[0].weight) and loaded.fc.out_features == 2
    torch.save({"fc.weight": _Harmful()}, kept)
    with pytest.raises(InputError, match="its weights cannot be had .*[Ww]eights.only"):
        built("ab", model_flavour=name, load_pretrained=True)
    assert not (tmp_path / "harmed").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize(("changes", "words"), [
    ({"load_pretrained": True}, "'simple_cnn' has no pretrained weights; set load_pretrained to false"),
    ({"model_flavour": "resnet5000"}, "is no folder, no torchvision classifier"),
    ({"model_flavour": "/nowhere/at/all"}, "is no folder"),
    ({"model_flavour": "params"}, "has no config.json"),
])
def test_a_model_that_is_not_there_is_one_line(changes, words):
    with pytest.raises(InputError, match=words):
        built("ab", **changes)


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    where = cut_training.tiny_vit(tmp_path / "vit")
    with pytest.raises(InputError, match="no image classifier can be made of it"):
        built("ab", model_flavour=where, load_pretrained=True)
    built("ab", model_flavour=where).save_pretrained(where)
    cut_training.tiny_vit(tmp_path / "vit", hidden_size=28)
    with pytest.raises(InputError, match=r"its weights do not fit its config: \d+ missing or of another shape, such as vit"):
        built("ab", model_flavour=where, load_pretrained=True)


# ------------------------------------------------------------------------------------------------- runs

def test_a_run_from_config_to_folder(home, capsys):
    config = small(save_per_epoch_checkpoint=True, epochs=2)
    summary, = finetune.finetune([config])
    folder = paths.TRAINING / "breastmnist" / "simple_cnn__cross_entropy__scratch"
    assert summary == store.read_json(folder / "summary.json")
    kept = folder / "checkpoints"
    assert {path.name for path in kept.iterdir()} == {"best.pt", "_best_meta.json", "last.pt", "epoch_000.pt", "epoch_001.pt"}
    meta = store.read_json(kept / "_best_meta.json")
    values = [record["val_acc@1"] for record in summary["history"]]
    assert meta == {"best_value": max(values), "epoch": values.index(max(values)), "monitor": "val_acc@1", "mode": "max",
                    "best_ckpt": "best.pt"}
    assert same(weights.load(kept / f"epoch_00{meta['epoch']}.pt"), weights.load(kept / "best.pt"))
    assert build(TrainConfig, store.read_json(folder / "train_config.json"), "again") == config
    measured = {name.replace("val_", "test_") for name in summary["history"][0] if name.startswith("val_")}
    assert summary["test"].keys() == measured
    rows = store.read(folder / "profile.csv", "profile")
    assert rows.groupby("split", sort=False)["batch_size"].sum().to_dict() == {"train": 96, "val": 156, "test": 156}
    assert rows[rows["split"] == "train"]["global_step"].tolist() == list(range(6))
    assert "eval_topk 3, 5 left out: there are 2 classes" in capsys.readouterr().out
    assert finetune.finetune([config], resume=True) == [summary], "what has ended is not trained again"
    assert finetune.new_folder(config).name.endswith("-v1")


def test_the_cap_holds_on_train_alone(home):
    data = opened(max_datapoints_per_class=(3, 5))
    assert sorted(data.splits["train"].labels[data.indices["train"]].ravel().tolist()) == [0] * 3 + [1] * 5
    assert len(data.indices["val"]) == 78


def test_checkpoints_within_an_epoch_cost_little(tmp_path):
    saved = Checkpoints(tmp_path, small(checkpoint_steps=10), Processes())
    assert [step for step in range(1, 40) if saved.due(step)] == [10, 20, 30]
    saved._took_s = 60.0
    assert not saved.due(10), "one that takes a minute is not due within twenty"


def test_each_process_goes_on_with_its_own_sums(tmp_path):
    class Both(Processes):
        values = {}

        def gathered(self, value):
            self.values[self.rank] = value
            return [self.values.get(rank, value) for rank in range(2)]

    trainer = SimpleNamespace(options=Options(torch.device("cpu")), state=dict, load_state=lambda content: None)
    positions = {rank: Position(batch=3, loss=1.5 + rank, right=2.0 * rank, samples=7 - rank, best=0.5) for rank in (1, 0)}
    saved = {rank: Checkpoints(tmp_path, small(), Both(rank, 2)) for rank in (1, 0)}
    for rank, position in positions.items():
        saved[rank].save(trainer, position)
    assert {rank: one.resume(trainer) for rank, one in saved.items()} == positions


def test_a_state_that_version_0_5_0_saved_is_resumed_where_one_process_ran(tmp_path):
    position = Position(batch=3, loss=1.5, right=2.0, samples=7, best=0.5)
    trainer = SimpleNamespace(options=Options(torch.device("cpu")), state=dict, load_state=lambda content: None)
    saved = Checkpoints(tmp_path, small(), Processes())
    saved.save(trainer, position)
    content = weights.load(tmp_path / "last.pt")
    content.pop("sums")
    weights.save(content, tmp_path / "last.pt")
    assert saved.resume(trainer) == position
    weights.save({**content, "random": 2 * content["random"]}, tmp_path / "last.pt")
    with pytest.raises(InputError, match="is of version 0.5.0, which kept the sums of the first process alone; train anew"):
        Checkpoints(tmp_path, small(), Processes(1, 2)).resume(trainer)


def test_a_run_that_was_killed_holds_its_folder_until_its_workers_are_gone(home, tmp_path):
    held = threading.Event()

    def hold():
        with locks.writer(tmp_path / "run"):
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert trained(tmp_path / "run")["epochs"] == 1
    thread.join()


def test_a_run_resumes_in_its_folder_and_refuses_another_config(home, tmp_path):
    stops = iter([None] * 4 + [Stopped()])

    def check():
        if stop := next(stops, None):
            raise stop

    folder, config = tmp_path / "cut", small(epochs=2, checkpoint_steps=1)
    with pytest.raises(Stopped):
        run.train(config, folder, torch.device("cpu"), 1, check)
    with pytest.raises(InputError, match=r"holds a run of another config \(other: epochs\); name another folder"):
        trained(folder, epochs=3, checkpoint_steps=1)
    trained(folder, epochs=2, checkpoint_steps=1)
    trained(tmp_path / "whole", epochs=2, checkpoint_steps=1)
    assert same(last(folder)["model"], last(tmp_path / "whole")["model"])
    (folder / "summary.json").unlink()
    for content, words in ((b"junk", "holds no tensors"), (None, "is no checkpoint of this run")):
        if content:
            (folder / "checkpoints" / "last.pt").write_bytes(content)
        else:
            weights.save({"config": config.hash, "random": [{}], "position": {"epochs": 1}}, folder / "checkpoints" / "last.pt")
        with pytest.raises(InputError, match=words) as error:
            trained(folder, epochs=2, checkpoint_steps=1)
        assert "\n" not in str(error.value)


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(home, tmp_path, monkeypatch):
    class Bad(torch.nn.CrossEntropyLoss):
        calls = 0

        def forward(self, logits, targets):
            Bad.calls += logits.requires_grad
            return super().forward(logits, targets) * (float("nan") if Bad.calls == 5 else 1.0)

    monkeypatch.setitem(losses.LOSSES, "bad", (False, Bad))
    with pytest.raises(InputError, match=r"the loss is nan at step 4 \(epoch 1, lr .*\): training stops"):
        trained(tmp_path / "run", loss_name="bad", epochs=3)
    assert all(torch.isfinite(value).all() for value in last(tmp_path / "run")["model"].values())
    assert last(tmp_path / "run")["position"]["epoch"] == 1


def _watched(processes):
    of = SimpleNamespace(batches=run_data.Batches(range(3), 2, processes=processes), position=Position(), log=None,
                         checkpoints=SimpleNamespace(due=lambda steps: False), check=lambda: None)
    return of.position, run._Watch(of, Unobserved())


def test_a_process_without_a_share_of_a_batch_counts_none_of_its_own():
    logits, targets = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    for rank, expected in ((0, (1.5, 1, 1)), (3, (0.0, 0, 0))):
        position, watch = _watched(Processes(rank, 4))
        watch.end(Batch(0, torch.zeros(1, 1), torch.tensor(1.5), 0.1, logits, targets))
        watch.sum_up()
        assert (position.loss, position.right, position.samples) == expected
        assert (position.batch, position.batches) == (1, 1)


def test_sums_are_kept_in_what_the_device_has():
    assert [run._exact(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [torch.double, torch.double, torch.float]


def test_weights_that_are_no_number_after_the_last_step_end_no_run_well(home, tmp_path, monkeypatch):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(float("nan"))

    monkeypatch.setattr(optimization, "optimizer", lambda config, model: Broken(model.parameters(), lr=1.0))
    changes = {"batch_size": 64, "max_datapoints_per_class": 4}
    for metric, mode in (("val_loss", "min"), ("val_acc@1", "max")):
        with pytest.raises(InputError, match=f"{metric} is no number after any epoch"):
            trained(tmp_path / metric, monitor_metric=metric, monitor_mode=mode, **changes)
        assert not (tmp_path / metric / "summary.json").exists()


def test_the_energy_of_an_epoch_is_that_of_all_processes(home, tmp_path, monkeypatch):
    class Twice(Processes):
        def gathered(self, value):
            return [value, value]

    monkeypatch.setattr(run, "open_meter", lambda device: SimpleNamespace(
        name="ten watts", period_s=0.002, power_w=lambda: 10.0, counter_j=lambda: time.perf_counter() * 10))
    for number, (together, times) in enumerate(((Processes(), 1), (Twice(), 2), (Twice(0, 1, local_rank=1), 0))):
        summary = run.train(small(profile=False), tmp_path / str(number), torch.device("cpu"), 1, together=together)
        record, = summary["history"]
        assert record["energy_j"] == pytest.approx(times * 10 * record["train_s"], rel=0.2)


def test_a_disk_that_is_full_while_saving_keeps_the_older_checkpoint(home, tmp_path):
    trained(tmp_path / "run", epochs=1)
    before = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    config = small(epochs=2)
    for name in ("summary.json", "train_config.json"):
        (tmp_path / "run" / name).unlink()
    content = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    weights.save({**content, "config": config.hash}, tmp_path / "run" / "checkpoints" / "last.pt")
    before = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    with full_disk(300_000), pytest.raises(InputError, match=r"\.pt: cannot be written .*what was written before is kept"):
        run.train(config, tmp_path / "run", torch.device("cpu"), 1)
    assert (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes() == before
    assert len(trained(tmp_path / "run", epochs=2)["history"]) == 2


def test_out_of_memory_is_one_line(home, monkeypatch):
    def exhausted(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")

    monkeypatch.setattr(run, "train", exhausted)
    with pytest.raises(InputError, match="scratch: out of memory; a smaller batch_size with more grad_accum_steps takes less"):
        finetune.finetune([small()])


def test_a_run_as_a_task_reports_and_stops_and_goes_on(home, tmp_path):
    class Work:
        device, threads = "cpu[0-1]", 1

        def __init__(self, batches):
            self.left, self.reports = batches, []

        def check(self):
            self.left -= 1
            if self.left == 0:
                raise Stopped

        def report(self, content):
            self.reports.append(json.loads(json.dumps(content, allow_nan=False)))

    config = {**SMALL, "epochs": 2}
    with pytest.raises(Stopped):
        task.finetune(Work(12), config, str(tmp_path / "run"))
    work = Work(0)
    summary = task.finetune(work, config, str(tmp_path / "run"))
    assert len(summary["history"]) == 2
    splits = [one["metrics"].get("split") for one in work.reports]
    assert splits[-2:] == ["val", "test"]
    assert splits.count("val") == 1, "the first epoch was done before"
    steps = [one["metrics"] for one in work.reports if "split" not in one["metrics"]]
    assert all({"step", "epoch", "epochs", "loss", "lr"} <= one.keys() for one in steps)
    with pytest.raises(InputError, match="config: .*lr"):
        task.finetune(work, {**config, "lr": 0}, str(tmp_path / "run"))


def test_several_configs_by_name_one_of_which_is_wrong(home, monkeypatch, capsys):
    table = {"bad": small(root="nowhere"), "good": small()}
    monkeypatch.setattr(run_config, "load_configs", lambda: table)
    assert main.main(["finetune", "all"]) == 1
    output = capsys.readouterr()
    assert "error: bad: root 'nowhere'" in output.err
    assert "epoch 1/1: train loss" in output.out
    assert main.main(["finetune", "none"]) == 2
    assert "no config 'none' in params/training.yaml; there are: all, bad, good" in capsys.readouterr().err
    assert main.main(["finetune"]) == 2


@pytest.mark.slow
def test_several_labels_focal_loss_and_bf16(home, tmp_path):
    summary = trained(tmp_path / "run", root="synthetic:chestmnist", loss_name="focal", autocast_dtype="bf16",
                      monitor_metric="val_auroc_macro", batch_size=128, max_datapoints_per_class=60)
    assert math.isfinite(summary["history"][0]["train_loss"])
    assert 0.3 < summary["best_value"] < 0.8


# ------------------------------------------------------------------------------------------------- processes

@pytest.mark.slow
def test_runs_that_are_killed_end_as_those_that_are_not_bit_for_bit(home):
    outcome = killed.in_a_process("tests.cut_training", 5, 3)
    assert (outcome["kills"], outcome["wrong"]) == (5, [])
    assert any(batches % 7 for batches in outcome["reached"]), "some were killed within an epoch"


def _with_workers(folder, workers):
    config = small(num_workers=workers, cpu_color_jitter=True, persistent_workers=workers > 0, epochs=2)
    run.train(config, folder, torch.device("cpu"), 1)


@pytest.mark.slow
def test_workers_of_the_loader_change_nothing_also_in_a_worker_of_a_job(home, tmp_path):
    _with_workers(tmp_path / "none", 0)
    call(_with_workers, tmp_path / "two", 2)
    assert same(last(tmp_path / "none")["model"], last(tmp_path / "two")["model"])


@pytest.mark.slow
def test_two_processes_learn_what_one_does(home, tmp_path):
    config = {**SMALL, "batch_size": 15, "grad_accum_steps": 2, "max_datapoints_per_class": 38, "epochs": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lib", "finetune",
             "--config", str(tmp_path / "config.json")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=paths.ROOT, check=False,
                          env={**os.environ, "LIB_OUTPUT": str(tmp_path), "OMP_NUM_THREADS": "1"})
    folder = paths.TRAINING / "breastmnist" / "simple_cnn__cross_entropy__scratch"
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/2") == 1, "one process writes"
    trained(tmp_path / "one", **config)
    assert store.read(folder / "profile.csv", "profile")["batch_size"].max() == 8, "of 15; also where it is evaluated"
    one, two = last(tmp_path / "one"), last(folder)
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-4, atol=1e-6)
    ours, theirs = (copy.deepcopy(content["position"]["history"]) for content in (one, two))
    for record, other in zip(ours, theirs, strict=True):
        for name in set(record) - {"train_s", "images_per_sec", "energy_j"}:
            assert other[name] == pytest.approx(record[name], rel=1e-4, nan_ok=True)


class _Statistics(torch.nn.Module):
    """A model with running statistics, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm2d(1), torch.nn.Linear(4, 2)
        self.mask_token = torch.nn.Parameter(torch.zeros(3))

    def forward(self, inputs):
        return self.head(self.norm(inputs).flatten(1))


class _StatisticsTask:
    shape, workload = (1, 2, 2), SimpleNamespace(id="X", model="own")

    def model(self):
        torch.manual_seed(0)
        return _Statistics()

    def loss(self):
        return torch.nn.CrossEntropyLoss()

    def targets(self, labels):
        return labels


def _one_of_two(rank, place):
    """Train as one of two processes; leave the running mean before and after it is shared."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    both = Processes(rank, 2)
    trainer = Trainer(_StatisticsTask(), Options(torch.device("cpu")),
                      Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), parallel=both.parallel))
    trainer.train([(torch.full((4, 1, 2, 2), 1.0 + rank) + torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]))] * 3)
    before = trainer.model.norm.running_mean.item()
    both.share_statistics(trainer.model)
    after = trainer.model.norm.running_mean.item()
    weights.save({"before": before, "after": after, "head": trainer.model.head.weight.detach()}, place / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_what_is_used_and_evaluate_with_the_same_statistics(tmp_path):
    torch.multiprocessing.spawn(_one_of_two, (tmp_path,), nprocs=2)
    one, two = (weights.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert one["before"] != two["before"]
    assert one["before"] == one["after"] == two["after"]
    assert torch.equal(one["head"], two["head"])


def test_a_parameter_without_a_gradient_is_trained_in_no_process():
    recipe = Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), parallel=lambda model: model)
    model = Trainer(_StatisticsTask(), Options(torch.device("cpu")), recipe).model
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == {"mask_token"}
    assert model.norm.num_batches_tracked == 0
