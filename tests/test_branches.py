"""Networks whose control flow reads values: captured the way that random inputs take, and refused in a line beyond that."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lib.cli.main import main
from lib.errors import InputError
from lib.predict.advice import advise
from lib.predict.advice.query import Query
from lib.predict.networks import work
from lib.predict.questions import answers, questions
from lib.work import networks
from lib.work.building import values
from lib.work.building.inputs import Input
from lib.work.graph import capture, counts
from lib.work.networks import Network


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


class Greedy(Branches):
    """It takes more memory than there is, as soon as it has read a value."""

    def forward(self, x):
        x = super().forward(x)
        return x.new_ones(1 << 50 if x.mean().item() else 1)


class Reads(Branches):
    """It hands values to another library, which fake tensors do not."""

    def forward(self, x):
        return self.first(x) * float(x.numpy().sum())


HERE = "tests.test_branches"


def ran(model, shape, mode):
    """Return the operators of a real run; those of views are left out, which Python may make in other ways."""
    names = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    given = torch.randn(shape)
    with torch.set_grad_enabled(mode == "train"), Names():
        output = model.train(mode == "train")(given)
        if mode == "train":
            capture.default_loss(output).backward()
    return [name for name in names if name.split(".")[1] not in counts.VIEWS and not name.startswith(("prim", "aten._local"))]


@pytest.mark.parametrize("kind", [Branches, Other, Loops])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_network_that_reads_values_is_captured_the_way_that_it_runs(kind, mode):
    graph = capture.of_network(Network("own", kind, (4, 8)), mode)
    torch.manual_seed(0)
    assert [op.name for op in graph.ops if op.short not in counts.VIEWS] == ran(kind(), (4, 8), mode)
    assert graph.branches and all(place.startswith("test_branches.py, line ") for place in graph.branches)
    given = capture.capture(kind(), (4, 8), mode)
    assert [op.name for op in given.ops] == [op.name for op in graph.ops]


def test_the_branch_is_taken_on_a_gpu_too_and_in_an_optimizers_step():
    graph = capture.capture(Loops(), (4, 8), "train", "sgd", device="cuda:0")
    forward = [op.short for op in graph.ops if op.phase == "forward" and counts.matrix_flops(op)]
    assert forward == ["addmm"] * 4 and graph.branches


def test_networks_without_branches_are_not_run(monkeypatch):
    monkeypatch.setattr(values, "of_a_run", lambda *_: pytest.fail("it is run"))
    assert capture.of_network(networks.network("simple_cnn", 2)).branches == ()


def test_the_answer_is_the_same_each_time_and_says_so(capsys):
    several = [work.captured(networks.network(f"{HERE}:Branches", 4, "8"), "infer").flops for _ in range(2)]
    assert several[0] == several[1]
    assert main(["advise", f"{HERE}:Branches", "--input", "8", "--device", "t4", "--batch-size", "4"]) == 0
    assert "its control flow depends on values (test_branches.py, line 33): the branch of random inputs was taken" in \
        capsys.readouterr().out
    table = answers.answers([questions.Question(1, Query(f"{HERE}:Branches", 4, "8"), "t4")])
    assert "values at test_branches.py, line 33 (those of random inputs)" in table["not_modelled"][0]
    assert (advise.advise(Query(f"{HERE}:Loops", 4, "8"), ["cpu", "t4"]).table["predicted_ms"] > 0).all()


@pytest.mark.parametrize(("kind", "words"), [
    (Large, "MB of weights are too many to run it for them"), (Endless, "a run for them takes more than 1 s"),
    (Greedy, "it takes more memory than this machine has"), (Reads, "test_branches.py, line 89")])
def test_what_cannot_be_run_for_its_values_is_one_line(kind, words, monkeypatch):
    monkeypatch.setattr(values, "LONGEST_S", 0.6)
    with pytest.raises(InputError) as error:
        capture.of_network(Network("own", kind, (4, 8)))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_run_for_values_leaves_no_trace():
    import os
    import resource
    import sys

    before = (torch.random.get_rng_state(), resource.getrlimit(resource.RLIMIT_AS), torch.Tensor.tolist, os.fork, os._exit,
              sys.stdout)
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda _: values.of_a_run(Loops, (Input((4, 8)),), False, "it"), range(8)))
    assert several == [values.of_a_run(Loops, (Input((4, 8)),), False, "it")] * 8
    assert several[0].places == tuple(f"test_branches.py, line {line}" for line in (52, 54, 56, 57))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (resource.getrlimit(resource.RLIMIT_AS), torch.Tensor.tolist, os.fork, os._exit, sys.stdout) == before[1:]


WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
EXPERTS = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 100, "num_experts": 4}
LAYERS = {name: value for side in ("encoder", "decoder")
          for name, value in ((f"{side}_layers", 2), (f"{side}_attention_heads", 4), (f"{side}_ffn_dim", 64))}
CONFIGS = {
    "longformer": {**WIDTH, "attention_window": 16, "max_position_embeddings": 130},
    "led": {"d_model": 32, **LAYERS, "vocab_size": 100, "attention_window": 16, "max_encoder_position_embeddings": 128,
            "max_decoder_position_embeddings": 128},
    "vilt": {**WIDTH, "image_size": 32, "patch_size": 8, "max_position_embeddings": 40},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 100, "n_words": 100, "max_position_embeddings": 128},
    "vits": {**WIDTH, "ffn_dim": 64, "flow_size": 32, "spectrogram_bins": 33, "upsample_initial_channel": 32,
             "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "depth_separable_channels": 2},
    "nllb-moe": {"d_model": 32, **LAYERS, "vocab_size": 100, "num_experts": 4, "encoder_sparse_step": 2,
                 "decoder_sparse_step": 2},
    "switch_transformers": {**EXPERTS, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_networks_of_transformers_that_read_values_are_captured(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name, **CONFIGS[name]}))
    net = networks.network(f"hf:{tmp_path}", 2)
    for device in ("cpu", "cuda:0"):
        graph = capture.of_network(net, device=device)
        assert graph.branches and sum(map(counts.matrix_flops, graph.ops)) > 0
