"""Networks whose control flow reads values: captured the way that random inputs take, and refused in a line beyond that."""


import pytest
import torch
from torch import nn

from lib.predict.advice import questions
from lib.work import networks
from lib.work.building import values
from lib.work.graph import capture, counts
from lib.work.networks import Network
from lib.work.run_config import RunConfig
from tests import in_both_modes, output_of, refused
from tests.test_capture import ran
from tests.test_named_networks import SIDES, SMALL, written


class Branches(nn.Module):
    """One of two layers, by the sign of a mean: of bias 3 it is above 0."""

    def __init__(self, bias=3.0):
        super().__init__()
        self.first, self.wide, self.narrow = nn.Linear(8, 8), nn.Linear(8, 64), nn.Linear(8, 2)
        nn.init.constant_(self.first.bias, bias)

    def forward(self, x):
        x = self.first(x)
        return self.wide(x) if x.mean() > 0 else self.narrow(x)


class Other(Branches):
    """The other way."""

    def __init__(self):
        super().__init__(-3.0)


class Loops(nn.Module):
    """As many layers as a value says, and elements that a mask selects."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.steps = nn.Parameter(torch.tensor([2, 1]), requires_grad=False)

    def forward(self, x):
        for _ in range(int(self.steps.sum())):
            x = self.layer(x)
        for number, times in enumerate(self.steps.tolist()):
            x = x + number * times
        kept = x[x.abs() >= 0]
        return self.layer(kept.view(-1, 8)) * len(kept.nonzero())


class Large(Branches):
    """Too large to be run for its values."""

    def __init__(self):
        super().__init__()
        self.more = nn.Linear(20_000, 20_000)


class Endless(Branches):
    """It ends by a value that never comes."""

    def forward(self, x):
        while not (x.abs().sum() < 0).item():
            x = x * 1.0
        return self.first(x)


class Reads(Branches):
    """It hands values to another library, which fake tensors do not."""

    def forward(self, x):
        return self.first(x) * float(x.numpy().sum())


@pytest.mark.parametrize("kind", [Branches, Other, Loops])
@in_both_modes
@pytest.mark.slow
def test_a_network_that_reads_values_is_captured_the_way_that_it_runs(kind, mode):
    def but_views(names):
        return [name for name in names if name.split(".")[1] not in counts.VIEWS]  # Python may make those in other ways

    net = Network("own", kind, (4, 8))
    graph = capture.of_network(net, mode)
    torch.manual_seed(0)
    assert but_views(op.name for op in graph.ops) == but_views(ran(net, mode))
    assert graph.branches and all(place.startswith("test_branches.py, line ") for place in graph.branches)


def test_the_branch_is_taken_on_a_gpu_too_and_in_an_optimizers_step():
    graph = capture.capture(Loops(), (4, 8), "train", "sgd", device="cuda:0")
    forward = [op.short for op in graph.ops if op.phase == "forward" and counts.matrix_flops(op)]
    assert forward == ["addmm"] * 4 and graph.branches


@pytest.mark.slow
def test_the_answer_says_which_branch_was_taken():
    out = output_of("advise", f"{__name__}:Branches", *"--input-size 8 --device t4 --batch-size 4 --explain".split())
    assert "its control flow depends on values (test_branches.py, line 29): the branch of random inputs was taken" in out
    table = questions.answer([questions.Question(1, RunConfig(f"{__name__}:Branches", 4, "8"), "t4")])
    assert "values at test_branches.py, line 29 (those of random inputs)" in table["not_modelled"][0]


@pytest.mark.parametrize("kind, words", [
    (Large, "MB of weights are too many to run it for them"), (Endless, "a run for them takes more than 1 s"),
    (Reads, "test_branches.py, line 77")])
@pytest.mark.slow
def test_what_cannot_be_run_for_its_values_is_one_line(kind, words, monkeypatch):
    monkeypatch.setattr(values, "LONGEST_S", 0.6)
    with refused(words):
        capture.of_network(Network("own", kind, (4, 8)))


CONFIGS = {
    "longformer": {**SMALL, "attention_window": 16, "max_position_embeddings": 130},
    "nllb-moe": {"d_model": 32, **SIDES, "vocab_size": 100, "num_experts": 4, "encoder_sparse_step": 2,
                 "decoder_sparse_step": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_networks_of_transformers_that_read_values_are_captured(name, tmp_path):
    net = networks.network(written(tmp_path, name, **CONFIGS[name]), 2)
    for device in ("cpu", "cuda:0"):
        graph = capture.of_network(net, device=device)
        assert graph.branches and sum(map(counts.matrix_flops, graph.ops)) > 0
        assert not [op.short for op in graph.ops if counts.is_work(op) and not counts.is_counted(op)]
