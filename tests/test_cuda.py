"""What is captured for CUDA without a GPU, how its kernels are chosen, and cards that no file lists."""

import itertools
import re
import textwrap

import pandas as pd
import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

from lib import paths, tables
from lib.config import definitions
from lib.config.notebooks import MachineParams
from lib.measure import ceilings, gpu_entry, machine, timing
from lib.predict import registry, transfer
from lib.work.graph import capture, counts, cuda_kernels, families, rebuild, spaces
from tests import advice_on, in_both_modes, real_pass

SWEEPS = spaces.load_sweeps()
GPU = torch.device("cuda:0")


class Small(nn.Module):
    """A network in which CUDA takes other kernels than the CPU: normalisation, dropout, attention with a mask and without."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.drop = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.3)
        self.attend = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    def forward(self, images):
        x = self.drop(self.norm(self.convolution(images))).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(*[self.attend(x, x, x, need_weights=False)[0].unsqueeze(1)] * 3).mean((1, 2))


def has_cuda_kernel(op):
    namespace, _, rest = op.name.partition(".")
    name, _, overload = rest.partition(".")
    name = f"{namespace}::{name}{'' if overload == 'default' else '.' + overload}"
    keys = ("CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def names(graph):
    return [op.short for op in graph.ops if counts.is_work(op)]


def captured(device="cpu", mode="train"):
    return capture.capture(Small(), (2, 3, 9, 9), mode, device=device)


def drawn(limits, dtype):
    """Yield six points of each family of operators: its name, the configuration and the operators on CUDA."""
    for name, space in SWEEPS.spaces.items():
        for point in itertools.islice(spaces.sample(name, space, limits, 1, dtype, "cuda:0"), 6):
            yield name, *point


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_swept_operator_has_a_kernel_on_cuda(dtype):
    for name, config, several in drawn(SWEEPS.limits["cuda"], dtype):
        for op in several:
            assert has_cuda_kernel(op), f"{config}: {op.name}"
            assert counts.is_counted(op) and families.describe(op)[0] == name
        (flops, moved), (on_cpu, moved_on_cpu) = spaces.work(several), spaces.work(config.ops())
        assert flops == on_cpu, config
        assert moved == pytest.approx(moved_on_cpu, rel=0.35), config  # statistics, which each kernel keeps in its way


def test_a_network_is_captured_with_the_kernels_of_its_device():
    of_cpu, of_cuda = map(captured, ("cpu", "cuda:0"))
    assert {"native_batch_norm", "bernoulli_"} <= set(names(of_cpu))
    assert not any("cudnn" in name or "efficient" in name for name in names(of_cpu))
    assert {"cudnn_batch_norm", "cudnn_batch_norm_backward", "native_dropout", "native_dropout_backward"} <= set(names(of_cuda))
    assert names(of_cuda).count("_scaled_dot_product_efficient_attention") == 2, "with dropout too"
    work = filter(counts.is_work, of_cuda.ops)
    assert all(has_cuda_kernel(op) and counts.is_counted(op) and families.describe(op) for op in work)
    assert names(captured()) == names(of_cpu), "and then the CPU's again"
    of_cpu, of_cuda = (sum(counts.matrix_flops(op) for op in graph.ops if op.phase == "forward") for graph in (of_cpu, of_cuda))
    assert of_cpu == of_cuda


KERNELS = """
    8.0   9       float32   64   efficient
    8.0   9       bfloat16  64   flash
    8.0   9       float16   64   efficient  masked
    8.0   9       bfloat16  64   efficient  causal
    8.0   9       float64   64   math
    9.0   91501   bfloat16  64   cudnn
    9.0   91500   bfloat16  64   flash
    9.0   92600   bfloat16  64   flash      dropout=0.1
    9.0   92600   bfloat16  64   efficient  dropout=0.1 masked
    9.0   92201   float16   160  cudnn
    9.0   92600   float16   160  flash      trains
    10.3  92600   float16   256  cudnn      trains
    8.9   9       float16   256  flash      trains
    8.9   9       float16   256  efficient  trains dropout=0.1
"""  # capability, version of cuDNN (0: none), element type, width of a head, the kernel, and how attention is computed


@pytest.mark.parametrize("case", KERNELS.strip().splitlines())
def test_attention_takes_the_kernel_that_the_card_has(monkeypatch, case):
    chip, cudnn, dtype, width, kernel, *words = case.split()
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: int(cudnn) or None)
    how = {name: float(value or 1) for name, _, value in (word.partition("=") for word in words)}
    query, key = (torch.empty(2, 4, length, int(width), dtype=getattr(torch, dtype)) for length in (8, 16))
    assert cuda_kernels.attention_kernel(query, key, key, **{"masked": False, "causal": False, **how},
                                         chip=tuple(map(int, chip.split(".")))) == kernel


@pytest.mark.cuda
@pytest.mark.parametrize("dtype, width, masked, dropout, trains", itertools.product(
    (torch.float32, torch.float16, torch.bfloat16), (64, 80, 128, 160, 256), (False, True), (0.0, 0.1, 0.125), (False, True)))
def test_torch_chooses_the_same_kernel_for_attention_on_this_card(dtype, width, masked, dropout, trains):
    pinned = re.search(r"^torch==([\d.]+)", (paths.ROOT / "requirements.txt").read_text(), re.M).group(1)
    if torch.__version__.partition("+")[0] != pinned and (dropout or trains or width in (160, 256)):
        pytest.skip(f"what is mirrored of these cases is the choice of torch {pinned}")
    query = torch.randn(2, 4, 32, width, device="cuda:0", dtype=dtype, requires_grad=trains)
    mask = torch.zeros(32, 32, device="cuda:0", dtype=dtype) if masked else None
    chosen = torch.nn.attention.SDPBackend(torch._fused_sdp_choice(query, query, query, mask, dropout)).name.lower()
    kernel = cuda_kernels.attention_kernel(query, query, query, masked=masked, causal=False, dropout=dropout, trains=trains,
                                           chip=cuda_kernels.capability("cuda:0"))
    assert kernel in chosen


@pytest.mark.cuda
@in_both_modes
def test_what_is_captured_for_cuda_is_what_this_card_runs(mode):
    with capture.Recorder() as recorder:
        real_pass(Small().to("cuda:0").train(mode == "train"), mode, torch.randn(2, 3, 9, 9, device="cuda:0"))
    assert names(captured("cuda:0", mode)) == [name for name in names(recorder) if name not in ("randn", "_to_copy")]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_swept_operator_runs_on_this_card(dtype):
    for _, _, several in drawn(spaces.Limits(most_flops=2e8, most_bytes=2e7), dtype):
        rebuild.runnable(several, GPU)()
    torch.cuda.synchronize(GPU)


@pytest.fixture
def switches():
    several = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in several]
    yield several
    for switch, allowed in zip(several, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.parametrize("here", [True, False])
def test_fp32_is_fp32_wherever_something_is_measured_on_a_gpu(monkeypatch, switches, here):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    for switch in switches:
        switch.allow_tf32 = True
    machine.exact_fp32()
    assert [switch.allow_tf32 for switch in switches] == [not here] * 2, "without a GPU the software id stays as it was"
    assert machine.tf32(torch.device("cuda:0")) is not here
    assert machine.tf32(torch.device("cpu")) is False


class Card:
    """Stands in for a GPU, with clocks of host and device: a launch takes the host 5 µs, a graph's 10, a triad the GPU 1 µs."""

    def __init__(self, monkeypatch, records=True):
        self.host_ms = self.device_ms = 0.0
        self.records, self.recorded = records, []
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(timing, "_graphed", self.graphed)
        monkeypatch.setattr(timing, "synchronize", self.synchronize)

    def launch(self, host_ms, device_ms):
        self.host_ms += host_ms
        self.device_ms = max(self.device_ms, self.host_ms) + device_ms

    def synchronize(self, device=None):
        self.host_ms = max(self.host_ms, self.device_ms)

    def kernel(self):
        self.launch(0.005, 0.001)

    def graphed(self, call, calls, device):
        if not self.records:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded.append(calls)
        return lambda: self.launch(0.010, 0.001 * calls)


class Event:
    """A CUDA event on a card: its time is when the device has done all that was queued before it."""

    def __init__(self, card):
        self.card = card

    def record(self):
        self.at_ms = max(self.card.host_ms, self.card.device_ms)

    def synchronize(self):
        self.card.synchronize()

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.mark.parametrize("where, graph, records, ms", [
    (GPU, True, True, 0.001), (GPU, False, True, 0.005), (GPU, True, False, 0.005), (torch.device("cpu"), True, False, None)])
def test_a_small_kernel_is_timed_in_a_graph_where_it_can_be_and_says_so(monkeypatch, where, graph, records, ms):
    card = Card(monkeypatch, records)
    timed = timing.measure(card.kernel, where, 0.01, graph=graph)
    assert timed.graphed == (ms == 0.001)
    assert ms is None or timed.median_ms == pytest.approx(ms, rel=1e-6 if timed.graphed else 0.03), "no launch is in a graph's"
    assert not timed.graphed or card.recorded[-1] in (1000, 1001), "as many calls as fill a sample"


@pytest.mark.cuda
def test_the_l2_cache_of_this_card_is_faster_than_its_memory(home):
    table = ceilings.measure_ceilings(MachineParams(device="cuda:0", budget_s=8)).best.set_index("level")
    assert table["peak_gbps"]["L2"] > 1.2 * table["peak_gbps"]["device"]
    assert "CUDA graph" in table["method"]["L2"]


@pytest.mark.cuda
def test_a_kernel_timed_in_a_graph_takes_what_the_profiler_says():
    """Of zeros, whose product draws too little power for a clock that changes."""
    left, product = torch.zeros(4096, 4096, device=GPU), torch.empty(4096, 4096, device=GPU)

    def call():
        return torch.mm(left, left, out=product)

    timing.measure(call, GPU, 2.0)
    timed = timing.measure(call, GPU, 1.0, graph=True)
    assert timed.graphed
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(200):
            call()
        torch.cuda.synchronize()
    kernels = [event.time_range for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    last = sorted(kernels, key=lambda kernel: kernel.start)[-len(kernels) // 4:]
    assert timed.median_ms == pytest.approx(sum(kernel.elapsed_us() for kernel in last) / 50 / 1e3, rel=0.03)


def ceilings_of_a_card(*levels):
    rates = {"compute": [("fp32", 48_765.4), ("bf16", 97_531.2)], "L2": [("fp64", 2800.0)], "device": [("fp64", 700.4)]}
    rows = [{"dtype": dtype, "level": level, "peak_gflops" if level == "compute" else "peak_gbps": rate}
            for level in levels for dtype, rate in rates[level]]
    table = pd.DataFrame(rows, columns=tables.columns("ceilings")).assign(device="cuda:0", method="", verdict="stable")
    overheads = pd.DataFrame(columns=["what", "median_us", "p99_us"])
    return ceilings.Ceilings(table, overheads, {"started_utc": "2026-11-22T10:00", **machine.ids()}, "")


@pytest.fixture
def unknown_card(with_card, monkeypatch):
    monkeypatch.setattr(machine, "device_name", lambda where: "NVIDIA GeForce RTX 4080")
    monkeypatch.setattr(machine, "hardware", lambda: {"gpus": [{"compute_capability": "8.9", "multiprocessors": 76}]})
    monkeypatch.setattr(machine, "memory_mb", lambda name: 16_704.2)
    monkeypatch.setattr(machine, "levels", lambda device, threads: {"L2": 64 * 2**20})


def test_a_card_that_is_not_listed_is_offered_as_an_entry_that_then_predicts(unknown_card, tmp_path, monkeypatch):
    card = ceilings_of_a_card("compute", "L2", "device")
    text, entry = gpu_entry.unlisted(card)
    assert "does not list 'NVIDIA GeForce RTX 4080'; did you mean NVIDIA GeForce RTX " in text
    path = tmp_path / "devices.yaml"
    path.write_text((paths.PARAMS / "devices.yaml").read_text() + textwrap.indent(yaml.safe_dump(entry, sort_keys=False), "  "))
    listed = definitions.load_devices(path)
    assert listed["geforce-rtx-4080"].model_dump().items() >= {
        "name": "NVIDIA GeForce RTX 4080", "architecture": "ada", "multiprocessors": 76, "peak_gbps": 700,
        "peak_gflops": {"fp32": 48_800, "bf16": 97_500}, "memory_mb": 16_704, "cache_mb": 67.1}.items()
    for module in (definitions, registry, transfer):
        monkeypatch.setattr(module, "load_devices", lambda: listed)
    assert registry.vendor_of("GeForce RTX 4080") == "geforce-rtx-4080"
    table = advice_on("geforce-rtx-4080", "W1").table
    assert table["predicted_ms"][0] > 0
    assert gpu_entry.unlisted(card) == ("", {})


def test_a_card_whose_ceilings_are_not_all_measured_is_no_entry(unknown_card, monkeypatch):
    text, entry = gpu_entry.unlisted(ceilings_of_a_card("compute"))
    assert "no ceiling of level device" in text and entry == {}
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    assert gpu_entry.unlisted(ceilings_of_a_card("compute")) == ("", {}), "a replay of another machine"
