"""How long whole networks take, and how much memory, as a program would see it: a fresh process, the system's allocator."""

import gc
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib import store
from lib.errors import InputError
from lib.measure import load, machine
from lib.measure.archive import Progress
from lib.measure.networks import allocator
from lib.measure.reference_kernel import SLOW, USUAL, Yardstick
from lib.measure.timing import VERDICTS, synchronize
from lib.tables import columns
from lib.work import networks
from lib.work.graph import capture

_WARMUP, _LEAST = 2, 5
MEMORIES = ("default", "kept")  # what becomes of freed memory: the system's allocator decides, or it stays in the process


@dataclass(frozen=True)
class Case:
    """One network in one mode at one batch size; ``input_shape`` empty is its usual one."""

    network: str
    mode: str
    batch_size: int
    input_shape: str = ""
    dtype: str = "fp32"
    channels_last: bool = False
    compiled: bool = False

    def resolved(self) -> networks.Network:
        """Return the network with the shape of its batch; InputError for a name or shape that is none."""
        return networks.network(self.network, self.batch_size, self.input_shape)


def program(case: Case, device: torch.device) -> Callable[[], object]:
    """Return one pass (infer), or one forward, loss and backward (train), of a network with random weights.

    Raises InputError for a mode that is none.
    """
    if case.mode not in capture.MODES:
        raise InputError(f"no mode {case.mode!r}; there are: {', '.join(capture.MODES)}")
    net = case.resolved()
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    model = net.build().to(device)
    inputs = torch.randn(net.shape, device=device)
    if len(net.shape) == 4:
        model, inputs = model.to(memory_format=layout), inputs.to(memory_format=layout)
    model = torch.compile(model) if case.compiled else model
    amp = torch.autocast(device.type, {"bf16": torch.bfloat16, "fp16": torch.float16}[case.dtype]) \
        if case.dtype != "fp32" else nullcontext()
    if case.mode == "infer":
        model.eval()

        def forward() -> object:
            with torch.no_grad(), amp:
                return model(inputs)
        return forward
    model.train()

    def step() -> None:
        with amp:
            loss = capture.default_loss(capture.first_tensor(model(inputs)))
        loss.backward()
        model.zero_grad(set_to_none=True)
    return step


def _status_mb(field: str) -> float:
    """Return a line of /proc/self/status in 10^6 bytes; NaN where there is none."""
    try:
        return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024 / 1e6
    except (OSError, AttributeError):
        return float("nan")


def _forget_peak() -> None:
    """Have the kernel count the peak of resident memory anew."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _tensor_peak_mb(call: Callable[[], object], device: torch.device) -> float:
    """Return the most that a pass allocates for tensors at once beyond what it started with, in 10^6 bytes.

    On CUDA by the allocator's own count, on the CPU by the profiler's record of every allocation.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    held = np.cumsum([size for _, size in found])
    return float(max(0, held.max(initial=0))) / 1e6


def _time_case(case: Case, device: torch.device, budget_s: float, yardstick: Yardstick | None) -> dict[str, Any]:
    _forget_peak()
    before_mb = _status_mb("VmRSS")
    call = program(case, device)
    for _ in range(_WARMUP):
        call()
    synchronize(device)
    samples, looks, end = [], [], time.perf_counter() + budget_s
    while len(samples) < _LEAST or time.perf_counter() < end:
        before = yardstick.wait() if yardstick else float("nan")
        begin = time.perf_counter_ns()
        call()
        synchronize(device)
        samples.append((time.perf_counter_ns() - begin) / 1e6)
        looks.append(max(before, yardstick.after()) if yardstick else float("nan"))
    return {"samples_ms": samples, "yardstick_ms": looks, "rss_mb": _status_mb("VmHWM") - before_mb,
            "tensors_mb": _tensor_peak_mb(call, device)}


def _serve(cases: Sequence[Case], device_id: str, budget_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure some cases in this process, one after another; return what became of each, and the identity."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts allocations, and is to say nothing
    device = machine.device(device_id)
    machine.use(device)
    with load.device_lock(device_id):
        yardstick = Yardstick() if device.type == "cpu" else None
        if yardstick:
            yardstick.settle()
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))  # the libraries are there before we count
        found = []
        for case in cases:
            try:
                found.append({"case": case, **_time_case(case, device, budget_s, yardstick), "reason": ""})
            except (RuntimeError, TypeError, ValueError, MemoryError) as error:
                found.append({"case": case, "reason": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
            gc.collect()
            allocator.give_back()
    return found, {**machine.identity(), "threads": torch.get_num_threads()}


def in_a_process(cases: Sequence[Case], device_id: str = "cpu", budget_s: float = 1.0,
                 memory: str = "default") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure some cases in a process of its own; return ``samples_ms, yardstick_ms, rss_mb, tensors_mb`` of each, and its ids.

    Raises InputError when the process dies.
    """
    keeping = allocator.kept_by_children() if memory == "kept" else nullcontext()
    try:
        with keeping, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_serve, tuple(cases), device_id, budget_s).result()
    except BrokenProcessPool:
        raise InputError(f"the process that measured {cases[0].network} died: out of memory?") from None


def measure_networks(cases: Sequence[Case], device_id: str = "cpu", rounds: int = 2, budget_s: float = 1.0,
                     memory: str = "default", raw: Path | None = None,
                     progress: Progress = lambda items, _: items) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Measure networks in interleaved rounds, a process a network; return the table ``networks`` and the identity.

    Passes while the processor was slower than usual do not count where others exist. ``raw``, a file of JSON lines, keeps every
    visit as it ends, and a second call goes on after them.
    """
    by_network: dict[str, list[Case]] = {}
    for case in cases:
        by_network.setdefault(case.network, []).append(case)
    visits, identity = _known(raw)
    draw = np.random.default_rng(0)
    order = [(number, list(by_network)[index]) for number in range(rounds) for index in draw.permutation(len(by_network))]
    for number, name in progress([pair for pair in order if pair not in visits], "networks"):
        found, identity = in_a_process(by_network[name], device_id, budget_s, memory)
        visits[number, name] = found
        if raw:
            _keep(raw, number, name, found, identity)
    return summarise(visits, identity, device_id, memory), identity


def _keep(raw: Path, number: int, name: str, found: list[dict[str, Any]], identity: dict[str, Any]) -> None:
    plain = [{**row, "case": vars(row["case"])} for row in found]
    raw.parent.mkdir(parents=True, exist_ok=True)
    with raw.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"round": number, "network": name, "found": plain, "identity": identity}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _known(raw: Path | None) -> tuple[dict[tuple[int, str], list[dict[str, Any]]], dict[str, Any]]:
    """Read the visits of an earlier call back; a torn last line is dropped."""
    visits, identity = {}, {}
    lines = raw.read_text(encoding="utf-8").split("\n")[:-1] if raw and raw.is_file() else []
    for line in lines:
        visit = json.loads(line)
        identity = visit["identity"]
        visits[visit["round"], visit["network"]] = [{**row, "case": Case(**row["case"])} for row in visit["found"]]
    return visits, identity


def _usual_ms(visits: Iterable[list[dict[str, Any]]]) -> float:
    """Return what the yardstick takes at most on a processor as fast as usual, judged by all visits."""
    looks = [look for found in visits for row in found for look in row.get("yardstick_ms", ())]
    return SLOW * float(np.percentile(looks, USUAL)) if looks and np.isfinite(looks).all() else np.inf


def summarise(visits: dict[tuple[int, str], list[dict[str, Any]]], identity: dict[str, Any], device_id: str,
              memory: str) -> pd.DataFrame:
    """Return the table ``networks`` from the visits of all rounds."""
    usual_ms, by_case = _usual_ms(visits.values()), {}
    for found in visits.values():
        for row in found:
            by_case.setdefault(row["case"], []).append(row)
    rows = []
    for case, found in by_case.items():
        good = [row for row in found if not row["reason"]]
        shared = {**vars(case), "device": device_id, "memory": memory, "threads": identity["threads"],
                  **{name: identity[name] for name in ("hardware_id", "software_id")}}
        if not good:
            rows.append({**shared, "status": "failed", "reason": found[0]["reason"], "n": 0, "verdict": VERDICTS[2]})
            continue
        taken = np.concatenate([row["samples_ms"] for row in good])
        usual = np.concatenate([row["yardstick_ms"] for row in good]) <= usual_ms if np.isfinite(usual_ms) else \
            np.ones(len(taken), bool)
        used = taken[usual] if usual.sum() >= _LEAST else taken
        low, median, high = np.percentile(used, (25, 50, 75))
        spread = (high - low) / median
        verdict = VERDICTS[0] if spread <= 0.10 else VERDICTS[1] if spread <= 0.25 else VERDICTS[2]
        if usual.sum() < _LEAST and verdict == VERDICTS[0]:
            verdict = VERDICTS[1]
        rows.append({**shared, "latency_ms": median, "latency_iqr_ms": high - low, "n": len(used),
                     "usual_share": float(usual.mean()), "rss_mb": float(np.max([row["rss_mb"] for row in good])),
                     "tensors_mb": float(np.max([row["tensors_mb"] for row in good])), "status": "ok",
                     "reason": "" if usual.sum() >= _LEAST else "fewer than five passes on a processor as fast as usual",
                     "verdict": verdict})
    return pd.DataFrame(rows).reindex(columns=columns("networks"))


def write(table: pd.DataFrame, path: Path, **facts: Any) -> Path:
    """Write a table ``networks`` with its provenance."""
    store.write(table, path, "networks", derived=True)
    store.write_meta(path, "networks", **facts)
    return path
