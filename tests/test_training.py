"""Models and the training loop: shapes, gradients, odd batches, precision, metrics, weights."""

import copy
import pickle

import numpy as np
import pytest
import torch

from lib.config import definitions
from lib.config.definitions import Workload
from lib.work import datasets, models, training, weights, workloads
from lib.work.training import Observer, Options, Recipe, Trainer
from tests import refused

CPU = torch.device("cpu")


def task(dataset="pneumoniamnist", model="simple_cnn"):
    return workloads.prepare(Workload(id="X", dataset=dataset, size=28, model=model, batch_size=8))


def batches(of, sizes):
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(size, *of.shape, generator=draw), torch.randint(0, 2, (size, 1), generator=draw)) for size in sizes]


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_parameter_counts_by_hand():
    counts = {name: sum(p.numel() for p in models.build(name, 3 if spatial == 2 else 1, 9, spatial).parameters())
              for name, (spatial, _) in models.OWN.items()}
    assert counts == {
        "simple_cnn": sum(a * b * 9 + b for a, b in ((3, 32), (32, 64), (64, 128))) + 129 * 128 + 129 * 9,
        "cnn3d": sum(a * b * 27 + 3 * b for a, b in ((1, 16), (16, 32), (32, 64))) + 65 * 128 + 129 * 9,
        "resnet18_2d": 11_689_512 - 513_000 + 513 * 9}


def test_models_by_name_and_wrong_ones():
    assert models.build("mobilenet_v2", 1, 4)(torch.zeros(2, 1, 64, 64)).shape == (2, 4)
    with refused("takes 3D inputs, but the dataset is 2D; 2D models: simple_cnn, resnet18_2d"):
        models.build("cnn3d", 3, 2, spatial=2)
    with refused(r"'alexnet' cannot take inputs of \(1, 28, 28\)"):
        Trainer(task(model="alexnet"), Options(CPU))


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4], [4, 4, 1], [4, 4, 4, 4, 2]])
def test_accumulated_gradients_are_those_of_the_big_batch(sizes):
    """Also of a last step of fewer batches, and of a last batch of fewer samples."""
    torch.manual_seed(0)  # of the weights: with some of them a sum in float32 differs by more
    of, pieces = task(), batches(task(), sizes)
    merged = [tuple(map(torch.cat, zip(*group, strict=True))) for group in (pieces[:3], pieces[3:]) if group]
    whole = Trainer(of, Options(CPU), Recipe(sgd))
    parts = Trainer(of, Options(CPU, grad_accum_steps=3), Recipe(sgd))
    parts.model.load_state_dict(copy.deepcopy(whole.model.state_dict()))
    whole.train(merged)
    parts.train(pieces)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_and_the_schedule_steps_with_the_optimizer():
    class Recorder(Observer):
        def end(self, batch):
            seen.append((len(batch.inputs), batch.lr, batch.stepped))

    def scheduled(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    of, seen = task(), []
    recipe = Recipe(lambda model: sgd(model, 1.0), scheduled, max_grad_norm=1e-3)
    trainer = Trainer(of, Options(CPU, grad_accum_steps=2), recipe)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train(batches(of, [4, 4, 1]), Recorder())
    assert seen == [(4, 1.0, False), (4, 1.0, True), (1, 0.5, True)]
    moved = sum(((a - b) ** 2).sum() for a, b in zip(trainer.model.parameters(), before, strict=True)).sqrt()
    assert moved <= 1.5e-3 * 1.001


def test_layers_that_are_frozen_keep_their_running_statistics():
    of = task(model="resnet18_2d")
    trainer = Trainer(of, Options(CPU), Recipe(lambda model: sgd(model.fc)))
    trainer.model.requires_grad_(False).fc.requires_grad_(True)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train(batches(of, [8, 8]))
    after = trainer.model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {"fc.weight", "fc.bias"}


def test_a_precision_that_does_not_run_is_named(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not implemented for Half\nmore")

    monkeypatch.setattr(torch.nn.Conv2d, "forward", refuse)
    with refused(r"'fp16' does not run on cpu \(not implemented for Half\); use fp32"):
        training.check_precision(CPU, "fp16")


def test_metrics_against_hand_counts():
    scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
    assert training.metrics(scores, np.array([0, 1, 1, 1])) == {"accuracy": 0.75, "auc": 1.0}
    many = training.metrics(np.array([[0.9, 0.2], [0.1, 0.4], [0.8, 0.9]]), np.array([[1, 0], [0, 0], [0, 0]]))
    assert many == {"accuracy": pytest.approx(4 / 6), "auc": 1.0}, "a label that never occurs has no AUC"


def test_weights_are_read_back_as_data_and_foreign_files_are_not(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "owned"), "w")

    trainer, path = Trainer(task(), Options(CPU)), tmp_path / "best.pt"
    weights.save(trainer.model.state_dict(), path)
    again = task().model()
    weights.load_model(again, path)
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), again.parameters(), strict=True))
    other = task(model="resnet18_2d").model()
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil()))
    for name, words in (("evil", "holds no tensors"), ("best", "holds no weights of this model")):
        with refused(words):
            weights.load_model(other, tmp_path / f"{name}.pt")
    assert not (tmp_path / "owned").exists(), "a file is never code"


@pytest.mark.slow
def test_training_learns_synthetic_volumes(home):
    of = workloads.prepare(definitions.workload("W6"))
    opened = datasets.open_splits(of.workload, "synthetic", "native")
    training.seed_everything(0)
    trainer = Trainer(of, Options(CPU))
    loader = torch.utils.data.DataLoader(datasets.bounded(opened.splits["train"], 15, 4, 0), 4, shuffle=True)
    losses = [trainer.train(loader) for _ in range(4)]
    assert losses[-1] < 0.7 * losses[0]
