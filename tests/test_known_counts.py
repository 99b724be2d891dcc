"""Networks that hide operators or values from a capture: FLOPs by first principles, and by a real run of the same network."""

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.work import user_code
from lib.work.building import eager, inputs
from lib.work.graph import capture, counts
from lib.work.graph.recorder import Recorder
from lib.work.networks import Network
from tests import in_both_modes, real_pass, refused


class Pair(nn.Module):
    """Linear(16, 16) without bias, twice: 512 FLOPs a row and call."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.b(self.a(x))


class Masked(nn.Module):
    """Two layers of 10 tokens: q, k, v 10*32*96, scores and values 2*10*10*32, output 10*32*32, feed-forward 2*10*32*64."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=torch.zeros(x.shape[:2], dtype=torch.bool))


class Inference(Pair):
    """Under inference_mode."""

    @torch.inference_mode()
    def forward(self, x):
        return super().forward(x)


class PartlyInference(Pair):
    """The first layer under inference_mode: its weight takes no gradient."""

    def forward(self, x):
        with torch.inference_mode():
            x = self.a(x)
        return self.b(x.clone())


class ReturnsNone(Pair):
    """Its train() returns nothing."""

    def train(self, mode=True):
        super().train(mode)


class Packed(nn.Module):
    """LSTM(4, 6) of 7, 3 and 1 steps: 11 steps of 4*6*(4+6) multiply-adds."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 7, 1]), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=8)[0]


class Forces(nn.Module):
    """An energy and its gradient by the input: 12*32 + 32 multiply-adds each."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x):
        x = x.requires_grad_()
        return -torch.autograd.grad(self.net(x).sum(), x, create_graph=self.training)[0]


class Condition(Pair):
    """One layer, since the value is positive."""

    def forward(self, x):
        return torch.cond(x.square().sum() > -1, self.a, lambda x: self.b(self.b(x)), (x,))


class Loop(Pair):
    """Three layers, counted by a tensor."""

    def forward(self, x):
        return torch.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, self.a(x)), (torch.tensor(0), x))[1]


class Scan(Pair):
    """A recurrence of three steps."""

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        def step(carry, item):
            carry = self.a(carry) + item
            return carry, carry.clone()
        return scan(step, x, torch.stack([x, x, x]))[1]


class FullGraph(Pair):
    """Compiled in one graph."""

    def forward(self, x):
        return torch.compile(self.b, fullgraph=True)(self.a(x))


class Flexible(Pair):
    """Attention of 8 tokens that calls a function for each score: 2*2*8*8*16 behind a layer of 8 rows."""

    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        q = self.a(x)[:, None]
        return flex_attention(q, q, q, score_mod=lambda score, batch, head, i, j: score + (i - j))


class Tangent(Pair):
    """The gradient of a scalar for each sample by torch.func."""

    def forward(self, x):
        return torch.vmap(torch.func.grad(lambda row: torch.tanh(self.a(row)).sum()))(x)


class Reentrant(Pair):
    """A checkpoint of the older kind: the second layer runs again."""

    def forward(self, x):
        return checkpoint(lambda y: self.b(torch.tanh(y)), self.a(x), use_reentrant=True)


class Bag(nn.Module):
    """Eight rows of a table of 1,000 rows of 16 are added; then 16 -> 4."""

    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(1000, 16, mode="sum"), nn.Linear(16, 4, bias=False)

    def forward(self, ids):
        return self.head(self.bag(ids))


class Deformed(nn.Module):
    """Offsets by a convolution 4 -> 18, 3x3, on 8x8; a deformable one 4 -> 4: 64*9*4*(18 + 4) multiply-adds."""

    def __init__(self):
        super().__init__()
        from torchvision.ops import DeformConv2d
        self.offset, self.conv = nn.Conv2d(4, 18, 3, padding=1), DeformConv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x, self.offset(x))


# forward FLOPs of products of a batch of 2 (of 3 sequences), and those of the backward pass of a training step
KNOWN = [(Masked, "10x32", 706_560, None), (PartlyInference, "16", 2_048, 1_024), (ReturnsNone, "16", 2_048, 3_072),
         (Packed, "3 7x4", 5_280, None), (Condition, "16", 1_024, 1_024),
         (Loop, "16", 3_072, 5_120), (Scan, "16", 3_072, 5_120), (FullGraph, "16", 2_048, 3_072),
         (Tangent, "16", 1_024, None), (Reentrant, "16", 2_048, 4_096),
         (Bag, "8:int64", 256, 512), (Deformed, "4x8x8", 202_752, None)]


def network(kind, shape):
    size, _, sample = shape.rpartition(" ")
    return Network("own", kind, (), tuple(entry.batch(int(size or 2)) for entry in inputs.parse(sample)))


def products(ops):
    return [sum(counts.matrix_flops(op) for op in ops if op.phase == phase) for phase in ("forward", "backward")]


@pytest.mark.parametrize("kind, shape, forward, backward", KNOWN)
@in_both_modes
def test_flops_and_bytes_are_those_of_first_principles_and_of_a_real_run(kind, shape, forward, backward, mode):
    net = network(kind, shape)
    ops, training = capture.of_network(net, mode).ops, mode == "train"
    assert products(ops)[0] == forward and not [op.name for op in ops if counts.is_work(op) and not counts.is_counted(op)]
    if backward and training:
        assert products(ops)[1] == backward
    model, (placed, named) = user_code.in_mode(net.build(), training), net.made("cpu")
    if kind is Masked and not training:
        return  # torch runs nested tensors, which hide their sizes
    with eager.running(), Recorder() as real:
        real_pass(model, mode, *placed, **named)
    assert products(ops) == products(real.ops)
    assert sum(map(counts.compulsory_bytes, ops)) == sum(map(counts.compulsory_bytes, real.ops))


def test_inference_alone_is_counted_or_asked_for():
    graph = capture.of_network(network(Inference, "16"))
    assert products(graph.ops) == [2_048, 0]
    assert products(capture.of_network(network(Forces, "12")).ops) == [1_664, 1_664]
    with refused("no gradient reaches its output, .*; ask for inference$"):
        capture.of_network(network(Inference, "16"), "train")
    assert not torch.is_inference_mode_enabled()
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_flexible_attention_is_counted_and_trains_on_a_gpu_alone(monkeypatch):
    net = network(Flexible, "8x16")
    monkeypatch.delattr(torch.nn.attention, "flex_attention", raising=False)
    monkeypatch.delitem(sys.modules, "torch.nn.attention.flex_attention", raising=False)  # as in a process of its own
    assert products(capture.of_network(net, "train", device="cuda:0").ops)[1] == 2 * (8 * 512 + 2 * 4 * 8 * 8 * 16)
    assert products(capture.of_network(net).ops) == [2 * (8 * 512 + 4 * 8 * 8 * 16), 0]
    with refused("FlexAttention does not support backward on CPU"):
        capture.of_network(net, "train")


class Draws(Pair):
    """As many layers as torch draws where it is built, and Python and NumPy where it runs."""

    def __init__(self):
        super().__init__()
        self.times = int(torch.randint(50, ()))

    def forward(self, x):
        for _ in range(self.times + random.randrange(1, 9) + int(np.random.default_rng().integers(8))):
            x = self.a(x)
        return x


def test_random_numbers_are_the_same_in_each_capture():
    before = random.getstate(), torch.random.get_rng_state().tolist()
    graphs = [capture.of_network(network(Draws, "16")) for _ in range(3)]
    assert len({graph.ops for graph in graphs}) == 1
    assert (random.getstate(), torch.random.get_rng_state().tolist()) == before


class Sparse(Pair):
    """A sparse matrix."""

    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.eye(16).to_sparse())


class SparseGradient(Bag):
    """The gradient of its table is sparse."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 16, mode="sum", sparse=True)


class Nested(Pair):
    def forward(self, x):
        return self.a(torch.nested.nested_tensor([x[:1], x])).to_padded_tensor(0.0)


def test_what_hides_its_operators_is_refused_in_one_line():
    with refused("holds sparse tensors, which are not captured; give dense ones$"):
        capture.of_network(network(Sparse, "16"))
    with refused("sparse tensors are not captured: use dense ones"):
        capture.of_network(network(SparseGradient, "8:int64"), "train")
    with refused("holds lazy layers, whose sizes are not known before it runs; give their sizes$"):
        capture.of_network(network(lambda: nn.LazyLinear(4), "16"))
    with refused("nested tensors are not captured: pad the sequences$"):
        capture.of_network(network(Nested, "16"))
