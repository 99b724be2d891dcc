"""Models and the training loop: shapes, gradients, odd batches, precision, metrics, weights."""

import copy

import numpy as np
import pytest
import torch

from lib.config import definitions
from lib.config.definitions import Workload
from lib.errors import InputError
from lib.work import datasets, models, training, weights, workloads
from lib.work.training import RECIPES, Options, Recipe, Trainer
from tests.conftest import full_disk

CPU = torch.device("cpu")


class Recorder:
    """An observer that remembers what it was told."""

    def __init__(self):
        self.events = []

    def start(self):
        self.events.append("start")

    def mark(self, phase):
        self.events.append(phase)

    def end(self, batch):
        self.events.append(len(batch.inputs))


def task(dataset="pneumoniamnist", model="simple_cnn", size=28, batch=8):
    return workloads.prepare(Workload(id="X", dataset=dataset, size=size, model=model, batch_size=batch))


def batches(of, sizes):
    draw = torch.Generator().manual_seed(0)
    for size in sizes:
        labels = torch.randint(0, 2, (size, of.facts.classes if of.multi_label else 1), generator=draw)
        yield torch.randn(size, *of.shape, generator=draw), labels


@pytest.mark.parametrize("name", [f"W{n}" for n in range(1, 8)])
def test_every_workload_trains_on_an_odd_last_batch_of_one(name):
    of = workloads.prepare(definitions.workload(name), batch_size=2)
    trainer, recorder = Trainer(of, Options(CPU)), Recorder()
    loss = trainer.train(list(batches(of, [2, 1 if "resnet" not in of.workload.model else 2])), recorder)
    result = trainer.evaluate(list(batches(of, [2, 1])))
    assert np.isfinite([loss, result["loss"], result["accuracy"]]).all()
    assert recorder.events[:7] == ["start", *training.PHASES, 2]
    assert recorder.events[-1] == "start", "the loader is asked once more than there are batches"


@pytest.mark.parametrize("name", models.OWN)
def test_parameter_counts_by_hand(name):
    spatial = models.OWN[name][0]
    model = models.build(name, 3 if spatial == 2 else 1, 9, spatial)
    convolutions = {"simple_cnn": sum(a * b * 9 + b for a, b in ((3, 32), (32, 64), (64, 128))),
                    "cnn3d": sum(a * b * 27 + 3 * b for a, b in ((1, 16), (16, 32), (32, 64)))}
    by_hand = {"simple_cnn": convolutions["simple_cnn"] + 129 * 128 + 129 * 9,
               "cnn3d": convolutions["cnn3d"] + 65 * 128 + 129 * 9,
               "resnet18_2d": 11_689_512 - 513_000 + 513 * 9}[name]
    assert sum(p.numel() for p in model.parameters()) == by_hand


def test_models_by_name_and_wrong_ones():
    assert models.build("mobilenet_v2", 1, 4)(torch.zeros(2, 1, 64, 64)).shape == (2, 4)
    assert "resnet50" in models.names()
    with pytest.raises(InputError, match="no model 'resnet5000'; there are: simple_cnn, resnet18_2d, cnn3d"):
        models.build("resnet5000", 3, 2)
    with pytest.raises(InputError, match="takes 3D inputs, but the dataset is 2D; 2D models: simple_cnn, resnet18_2d"):
        models.build("cnn3d", 3, 2, spatial=2)
    with pytest.raises(InputError, match="vit_b_16.*size 30"):
        models.build("vit_b_16", 3, 2, size=30)
    with pytest.raises(InputError, match=r"'alexnet' cannot take inputs of \(1, 28, 28\)"):
        Trainer(task(model="alexnet"), Options(CPU))


def test_accumulated_gradients_are_those_of_the_big_batch():
    of = task()
    torch.manual_seed(0)
    whole = Trainer(of, Options(CPU))
    parts = Trainer(of, Options(CPU, grad_accum_steps=3))
    parts.model.load_state_dict(copy.deepcopy(whole.model.state_dict()))
    pieces = list(batches(of, [4, 4, 4, 4]))
    merged = [tuple(torch.cat(side) for side in zip(*pieces[:3], strict=True)), pieces[3]]
    whole.train(merged)
    parts.train(pieces)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_accumulated_gradients_of_unequal_batches_are_those_of_the_big_batch():
    of, pieces = task(), list(batches(task(), [4, 4, 1]))
    merged = [tuple(torch.cat(side) for side in zip(*pieces, strict=True))]
    recipe = Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), weight=[4 / 9, 4 / 9, 1 / 9].__getitem__)
    whole = Trainer(of, Options(CPU), Recipe(recipe.optimizer))
    parts = Trainer(of, Options(CPU, grad_accum_steps=3), recipe)
    parts.model.load_state_dict(copy.deepcopy(whole.model.state_dict()))
    whole.train(merged)
    parts.train(pieces)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_and_the_schedule_steps_with_the_optimizer():
    def scheduled(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    class Rates(Recorder):
        def end(self, batch):
            self.events.append((batch.lr, batch.stepped))

    of, seen = task(), Rates()
    trainer = Trainer(of, Options(CPU, grad_accum_steps=2),
                      Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=1.0), scheduled, max_grad_norm=1e-3))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train(list(batches(of, [4, 4, 4])), seen)
    ends = [event for event in seen.events if isinstance(event, tuple)]
    assert ends == [(1.0, False), (1.0, True), (0.5, True)]
    moved = sum(((a - b) ** 2).sum() for a, b in zip(trainer.model.parameters(), before, strict=True)).sqrt()
    assert moved <= 1.5e-3 * 1.001


def test_frozen_layers_keep_their_statistics():
    of = task(model="resnet18_2d")
    trainer = Trainer(of, Options(CPU), Recipe(lambda model: torch.optim.SGD(model.fc.parameters(), lr=0.1)))
    trainer.model.requires_grad_(False)
    trainer.model.fc.requires_grad_(True)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train(list(batches(of, [8, 8])))
    changed = {name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fc.weight", "fc.bias"}


def test_group_sizes_cover_the_partial_last_group():
    assert [training._group_size(i, 7, 3) for i in range(7)] == [3, 3, 3, 3, 3, 3, 1]


def test_bf16_and_channels_last_train():
    of = task()
    trainer = Trainer(of, Options(CPU, precision="bf16", channels_last=True))
    assert np.isfinite(trainer.train(list(batches(of, [8, 8]))))
    weight = next(p for p in trainer.model.parameters() if p.ndim == 4 and p.shape[1] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_what_augments_a_batch_leaves_its_memory_format():
    class Formats(Recorder):
        def end(self, batch):
            self.events.append(batch.inputs.is_contiguous(memory_format=torch.channels_last))

    of, seen = task(dataset="pathmnist"), Formats()
    recipe = Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), augment=torch.Tensor.contiguous)
    Trainer(of, Options(CPU, channels_last=True), recipe).train(list(batches(of, [4])), seen)
    assert [event for event in seen.events if isinstance(event, bool)] == [True], "one batch, channels last"


def test_a_precision_that_does_not_run_is_named(monkeypatch):
    with pytest.raises(InputError, match="fp32, bf16, fp16"):
        training.check_precision(CPU, "fp8")

    def refuse(*_, **__):
        raise RuntimeError("not implemented for Half\nmore")

    monkeypatch.setattr(torch.nn.Conv2d, "forward", refuse)
    with pytest.raises(InputError, match=r"'fp16' does not run on cpu \(not implemented for Half\); use fp32"):
        training.check_precision(CPU, "fp16")


def test_metrics_against_hand_counts():
    scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
    assert training.metrics(scores, np.array([0, 1, 1, 1])) == {"accuracy": 0.75, "auc": 1.0}
    many = training.metrics(np.array([[0.9, 0.2], [0.1, 0.4], [0.8, 0.9]]), np.array([[1, 0], [0, 0], [0, 0]]))
    assert many == {"accuracy": pytest.approx(4 / 6), "auc": 1.0}, "a label that never occurs has no AUC"
    assert np.isnan(training.metrics(np.array([[0.6, 0.4]]), np.array([0]))["auc"])


def test_weights_are_read_back_and_foreign_files_are_not(tmp_path):
    trainer, path = Trainer(task(), Options(CPU)), tmp_path / "best.pt"
    weights.save(trainer.model.state_dict(), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.pt"]
    again = Trainer(task(), Options(CPU)).model
    weights.load_model(again, path)
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), again.parameters(), strict=True))
    other = Trainer(task(model="resnet18_2d"), Options(CPU))
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for path, words in ((tmp_path / "junk.pt", "holds no tensors"), (tmp_path / "best.pt", "holds no weights of this model"),
                        (tmp_path / "none.pt", "missing")):
        with pytest.raises(InputError, match=words) as error:
            weights.load_model(other.model, path)
        assert "\n" not in str(error.value)


def test_weights_are_data_and_never_code(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    with open(tmp_path / "evil.pt", "wb") as file:
        pickle.dump(Evil(), file)
    with pytest.raises(InputError, match="holds no tensors"):
        weights.load(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_a_full_disk_leaves_the_older_weights(tmp_path):
    weights.save({"a": torch.ones(10)}, tmp_path / "last.pt")
    with full_disk(20_000), pytest.raises(InputError, match="last.pt: cannot be written .*what was written before is kept"):
        weights.save({"a": torch.zeros(100_000)}, tmp_path / "last.pt")
    assert torch.equal(weights.load(tmp_path / "last.pt")["a"], torch.ones(10))
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.slow
def test_training_learns_synthetic_volumes(home):
    of = workloads.prepare(definitions.workload("W6"))
    opened = datasets.open_splits(of.workload, "synthetic", "native")
    training.seed_everything(0)
    trainer = Trainer(of, Options(CPU))
    loader = torch.utils.data.DataLoader(datasets.bounded(opened.splits["train"], 30, 4, 0), 4, shuffle=True)
    losses = [trainer.train(loader) for _ in range(4)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_trains(precision):
    of = task()
    trainer = Trainer(of, Options(torch.device("cuda:0"), precision=precision, pin_memory=True))
    assert np.isfinite(trainer.train(list(batches(of, [8, 8]))))


def test_sgd_is_that_of_the_textbook():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer, weight, velocity = RECIPES["sgd"](0.1).optimizer(model), 2.0, 0.0
    for _ in range(3):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        velocity = 0.9 * velocity + 1.0 + 1e-4 * weight
        weight -= 0.1 * velocity
        assert model.weight.item() == pytest.approx(weight)
