"""The measured ceilings of a device: GEMM rate, memory bandwidth by level, launch and timer overheads."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib import locks, paths, store
from lib.config.notebooks import MachineParams
from lib.errors import InputError, choices, is_out_of_memory
from lib.measure import disturbance, machine
from lib.measure.archive import folders, newest, of_device, replayed_device
from lib.measure.budget import Budget, sampled
from lib.measure.statistics import STABLE, UNUSABLE, Timing, worst
from lib.measure.timing import Call, host_ms, measure, synchronize, time_calls
from lib.tables import columns
from lib.work.dtypes import torch_dtype

_LEAST, _OVERRUN = 3, 2.0  # samples of a visit, unless they take more than so many times its share of the budget
_CHANNELS, _SIDE = 256, 32
_GEMM_BYTES = 32.0  # of memory an element: three matrices of fp64, and what one is made from
_LOOKS, _LOOK_BYTES = 4, 2.0**28  # a first look at the rate of a dtype, and at how long memory takes
_TOUCHED, _PAGE = 2**26, 2**12  # bytes
_LARGEST_SHARE = 0.1  # of the budget, for a visit of a convolution or of a working set, beyond the smallest of its level
_VECTOR_RATE = 2e10  # FLOP/s below which a dtype has no kernels of its own, and a convolution would take seconds
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Probe:
    """One thing to time: what its row says without the times, the work of one call, and how to build the call."""

    dtype: str
    level: str
    method: str
    flops: float
    bytes: float
    build: Callable[[], Call]


def _gemm(dtype: str, n: int, device: torch.device) -> Call:
    left, right = (torch.randn(n, n, device=device, dtype=torch.float32).to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(left)

    def call() -> None:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.mm(left, right, out=out)
    return call


def _convolution(dtype: str, batch: int, device: torch.device) -> Call:
    """Build a 3x3 convolution of 256 channels at 32x32: another library than the GEMM's, often the faster one."""
    layer = torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=False).requires_grad_(False)
    layer = layer.to(device, torch_dtype(dtype), memory_format=torch.channels_last)
    images = torch.randn(batch, _CHANNELS, _SIDE, _SIDE).to(device, torch_dtype(dtype), memory_format=torch.channels_last)

    def call() -> None:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        layer(images)
    return call


def _triad(elements: int, device: torch.device) -> Call:
    b, c = (torch.ones(elements, device=device, dtype=_triad_dtype(device)) for _ in range(2))
    a = torch.empty_like(b)
    return lambda: torch.add(b, c, alpha=3.0, out=a)


def _triad_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _compute_probes(p: MachineParams, device: torch.device) -> list[Probe]:
    """Return the three largest GEMMs of each dtype that the budget and the free memory allow, and a convolution."""
    largest = p.gemm_max or (2048 if device.type == "cpu" else 8192)
    sizes = [size for size in (256, 512, 1024, 2048, 4096, 8192, 16384) if size < largest] + [largest]
    most_s, free, probes = p.budget_s / 100, machine.free_bytes(device), []
    for dtype in DTYPES:
        rate = _first_rate(dtype, device)
        fit = [n for n in sizes if rate and 2.0 * n**3 / rate < most_s and _GEMM_BYTES * n**2 < free / 2][-3:]
        probes += [Probe(dtype, "compute", f"torch.mm {n}x{n}x{n}", 2.0 * n**3, 3.0 * n * n * torch_dtype(dtype).itemsize,
                         partial(_gemm, dtype, n, device)) for n in fit]
        batch = 8 if device.type == "cpu" else 256
        work = 2.0 * 9 * _CHANNELS**2 * _SIDE**2 * batch
        images = 2.0 * batch * _CHANNELS * _SIDE**2 * torch_dtype(dtype).itemsize
        if rate > _VECTOR_RATE and work / rate < _LARGEST_SHARE * p.budget_s and 2.0 * images < free / 2:
            method = f"conv2d 3x3, {_CHANNELS} channels, batch {batch}"
            probes.append(Probe(dtype, "compute", method, work, images, partial(_convolution, dtype, batch, device)))
    return probes


def _first_rate(dtype: str, device: torch.device) -> float:
    """Return a first look at the FLOP/s of ``dtype``, or 0 where the device does not multiply matrices of it."""
    if dtype == "tf32" and device.type != "cuda":
        return 0.0
    side = 256 if device.type == "cpu" else 2048  # a GEMM of 256 rows is all launch on a GPU
    try:
        call = _gemm(dtype, side, device)
        return 2.0 * side**3 / min(time_calls(call, 1, device) for _ in range(_LOOKS)) * 1e3
    except (RuntimeError, TypeError):
        return 0.0


def _triad_probes(p: MachineParams, device: torch.device, threads: int) -> list[Probe]:
    caches, beyond = machine.levels(device, threads), "RAM" if device.type == "cpu" else "device"
    last = max(caches.values(), default=32 * 2**20)
    most = p.triad_max_mb * 1e6 if p.triad_max_mb else 8.0 * last
    most = min(max(most, 2.0 ** np.ceil(np.log2(4 * last))), machine.free_bytes(device) / 2)
    width, pace_s = _triad_dtype(device).itemsize, _triad_pace_s(device, min(most, _LOOK_BYTES))
    probes = []
    smallest = np.ceil(np.log2(caches.get("L1", 2**19) + 1))
    for touched in 2 ** np.arange(smallest, np.log2(most) + 1e-9, 1.0):
        level = next((name for name, size in caches.items() if touched <= size), beyond)
        if level == beyond and touched < 4 * last:
            continue  # partly in cache: no level's own rate
        first = level not in [probe.level for probe in probes]
        if not first and touched * pace_s > _LARGEST_SHARE * p.budget_s:
            continue  # of a level that has one already
        elements = int(touched) // (3 * width)
        probes.append(Probe("fp64" if width == 8 else "fp32", level, "triad a = b + s*c", 0.0, 3.0 * width * elements,
                            partial(_triad, elements, device)))
    return probes


def _triad_pace_s(device: torch.device, touched: float) -> float:
    """Return how long a visit takes for each byte that it touches, in seconds: to have the memory, and a few calls."""
    begin = time.monotonic()
    call = _triad(int(touched) // (3 * _triad_dtype(device).itemsize), device)
    synchronize(device)
    built_s = time.monotonic() - begin
    return (built_s + _LEAST * host_ms(call, device) / 1e3) / touched


def _visit(probe: Probe, device: torch.device, share_s: float) -> Timing | None:
    """Build a probe's call and time it, within ``share_s`` seconds where _LEAST calls let it; None where memory runs out."""
    begin = time.monotonic()
    try:
        call = probe.build()
        left_s = max(0.0, share_s - (time.monotonic() - begin))
        return measure(call, device, left_s, least=_LEAST, most_s=_OVERRUN * share_s, graph=True)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return None


def overheads(device: torch.device, budget_s: float) -> pd.DataFrame:
    """Measure what bounds any timing here (table ``overheads``): the clock's step and cost, jitter, launches, first touches."""
    steps = np.diff([time.perf_counter_ns() for _ in range(20_000)]) / 1e3
    scalar, spin = torch.zeros(1, device=device), torch.ones(64, 64)
    jitter = [time_calls(lambda: torch.mm(spin, spin), 1, spin.device) * 1e3 for _ in range(2000)]
    launch = measure(lambda: scalar.add_(1), device, budget_s, sample_ms=2.0)
    samples_us = {"timer_step": (steps[steps > 0], "smallest differences of time.perf_counter_ns"),
                  "timer_call": (steps.mean(keepdims=True), "mean of 20,000 readings in a row"),
                  "timer_jitter": (np.array(jitter), "one 64x64 GEMM, repeated"),
                  "launch": (launch.samples_ms * 1e3, "x.add_(1) of one element, many in a row")}
    if device.type == "cpu":
        samples_us["first_touch"] = _first_touch_us(), "a page of 4 KiB, beyond writing it again"
    rows = [{"device": str(device), "what": what, "median_us": np.median(times), "p99_us": np.percentile(times, 99),
             "n": len(times), "method": method} for what, (times, method) in samples_us.items()]
    return pd.DataFrame(rows, columns=columns("overheads"))


def _first_touch_us() -> np.ndarray:
    """Return what writing fresh memory takes beyond writing the same again, in microseconds a page of 4 KiB."""
    pages, taken_us = int(min(_TOUCHED, machine.free_bytes(torch.device("cpu")) / 8)) // _PAGE, []
    for _ in range(_LOOKS):
        fresh = torch.empty(pages * _PAGE, dtype=torch.uint8)  # too large for the heap: fresh each time
        first_ms, again_ms = (host_ms(partial(fresh.fill_, 1), fresh.device) for _ in range(2))
        taken_us.append((first_ms - again_ms) * 1e3 / pages)
        del fresh
    return np.maximum(taken_us, 0.0)


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``ceilings`` that count: the usable ones, and all of an element type or level that has none."""
    usable = table["verdict"] != UNUSABLE
    return table[usable | ~usable.groupby([table["level"], table["dtype"]]).transform("any")]


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one device as a notebook shows them: both tables, the inventory, the load, files and a note."""

    table: pd.DataFrame
    overheads: pd.DataFrame
    facts: dict
    note: str
    files: tuple[Path, ...] = ()

    @property
    def best(self) -> pd.DataFrame:
        """Return the best row of each dtype (compute) and each level (bandwidth), of those that ``counted`` leaves."""
        rows = counted(self.table)
        rate = rows["peak_gflops"].fillna(rows["peak_gbps"])
        return rows.loc[rate.groupby([rows["level"], rows["dtype"]]).idxmax()].reset_index(drop=True)

    @property
    def warning(self) -> str:
        """Return which ceilings rest on unusable rows only, in one line; empty when none does."""
        doubtful = self.best[self.best["verdict"] == UNUSABLE]
        names = doubtful["level"].where(doubtful["level"] != "compute", doubtful["dtype"])
        return f"UNUSABLE, measured on a busy machine and perhaps too low: {choices(names)}." if len(names) else ""

    @property
    def last_level(self) -> str:
        """Return the level beyond all caches: RAM, or the device's own memory."""
        return "RAM" if "RAM" in set(self.table["level"]) else "device"


def measure_ceilings(p: MachineParams, wait_s: float = locks.PATIENCE_S) -> Ceilings:
    """Measure the ceilings of one device within about ``budget_s`` and write them to ``data/ceilings/``.

    Raises InputError for a device that is not here, HeldError for one that another process measures for longer than ``wait_s``.
    """
    device, budget = machine.device(p.device), Budget(p.budget_s)
    machine.use(device)
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        with machine.on_threads(p.threads), locks.device(str(device), wait_s), machine.working(device):
            threads, identity, ids = torch.get_num_threads(), machine.identity(), machine.ids()
            quiet = disturbance.wait_for_quiet(threads, patience_s=budget.patience_s, device=str(device))
            probes = _compute_probes(p, device) + _triad_probes(p, device, threads)
            watch = disturbance.LoadWatch(str(device))
            small = overheads(device, min(0.5, p.budget_s / 20)).assign(**ids)
            timings = sampled(len(probes), budget, lambda index, share_s: _visit(probes[index], device, share_s), "ceilings")
            seen = watch.reading()
            crowded = seen.verdict(threads)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    rows, without = [], []
    for probe, timing in zip(probes, timings, strict=True):
        if not timing.n:
            without.append(probe)
            continue
        fast_ms = float(np.percentile(timing.samples_ms, 10))
        rows.append({"device": str(device), "threads": threads, **ids, "dtype": probe.dtype, "level": probe.level,
                     "source": "measured", "method": probe.method + ", as a CUDA graph" * timing.graphed,
                     "peak_gflops": probe.flops / fast_ms / 1e6 if probe.flops else np.nan,
                     "peak_gbps": np.nan if probe.flops else probe.bytes / fast_ms / 1e6, "working_set_mb": probe.bytes / 1e6,
                     "median_ms": timing.median_ms, "iqr_ms": timing.iqr_ms, "n": timing.n,
                     "verdict": worst(timing.verdict, crowded)})
    if not rows:
        raise InputError(f"{device} has too little memory left: not one probe of its ceilings fits")
    return _save(pd.DataFrame(rows, columns=columns("ceilings")), small, p,
                 {"load_at_start": asdict(quiet), "load_at_end": asdict(seen), **identity}, without)


def _save(table: pd.DataFrame, small: pd.DataFrame, p: MachineParams, facts: dict, without: list[Probe]) -> Ceilings:
    stem = f"ceilings_{str(table['device'][0]).replace(':', '-')}"
    facts |= {"started_utc": store.utc_now(), "notebook": "01_machine", "parameters": p.model_dump()}
    with locks.writer(paths.CEILINGS, locks.PATIENCE_S):  # of two hosts with one folder, each gets a name of its own
        path = store.fresh_file(paths.CEILINGS, stem)
        files = store.write(table, path, "ceilings"), store.write(small, _overheads_of(path), "overheads")
    for path, kind in zip(files, ("ceilings", "overheads"), strict=True):
        store.write_meta(path, kind, **facts)
    note = " ".join(filter(None, [f"Measured here, {facts['started_utc']}.", *_left_out(table, p, without),
                                  machine.overlooked(set(table["device"]))]))
    return Ceilings(table, small, facts, note, files)


def _left_out(table: pd.DataFrame, p: MachineParams, without: list[Probe]) -> Iterator[str]:
    """Yield which wanted sizes were not measured, since neither the free memory nor the budget allows everything."""
    largest_mb = table.loc[table["peak_gbps"].notna(), "working_set_mb"].max()
    if largest_mb < p.triad_max_mb / 2:  # sizes double
        yield (f"Working sets end at {largest_mb:,.0f} MB, before triad_max_mb = {p.triad_max_mb:,g}: memory or budget_s = "
               f"{p.budget_s:g} allow no more.")
    if p.gemm_max and not table["method"].str.startswith(f"torch.mm {p.gemm_max}x").any():
        yield f"No GEMM of gemm_max = {p.gemm_max} was measured: memory or budget_s = {p.budget_s:g} do not allow it."
    if without:
        names = [f"{probe.method} in {probe.dtype}" for probe in without]
        yield f"Memory ran out for {choices(names)}."


def _overheads_of(path: Path) -> Path:
    """Return the file of the overheads beside a file of ceilings."""
    return path.with_name(path.name.replace("ceilings", "overheads", 1))


def _stored(folder: Path, device: str, note: str, **wanted: str) -> Ceilings | None:
    """Read the newest ceilings of a device in a folder, see ``newest``; ``note`` has places for a file's name and its time."""
    if not (last := newest(folder, f"ceilings_{device.replace(':', '-')}", **wanted)):
        return None
    facts, path = last
    files = path, _overheads_of(path)
    return Ceilings(store.read(path, "ceilings"), store.read(files[1], "overheads"), facts,
                    note.format(path.name, facts["started_utc"]), files)


def saved(device: str) -> Ceilings | None:
    """Return the newest ceilings of a device that were measured here with this hardware and software; None without any."""
    return _stored(paths.CEILINGS, device, "Ceilings of {}, measured here {}.", **machine.ids())


def of_machine(folder: Path, devices: Sequence[str], hardware_id: str = "", threads: int = 0,
               quiet: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of ``ceilings`` in a folder that count, see ``counted``, and those of ``overheads``, of like devices.

    They are of this hardware (empty: any) with as many threads (0: any), whenever they were measured. ``quiet``: all rows that
    this machine's CPU measured while others held cores are unusable.
    """
    tables, others = [store.read_all([], "ceilings")], []
    for path in sorted(folder.glob("ceilings_*.csv")):
        table = of_device(store.read(path, "ceilings"), devices, hardware_id, threads)
        if quiet and _load_of(path).verdict(threads) != STABLE:
            table = table.assign(verdict=UNUSABLE)
        if len(table):
            tables.append(table)
            others.append(_overheads_of(path))
    small, table = store.read_all(filter(Path.is_file, others), "overheads"), pd.concat(tables[1:] or tables, ignore_index=True)
    return counted(table) if len(table) else table, small[small["device"].isin(devices)]


def _load_of(path: Path) -> disturbance.Load:
    """Return what others took from a CPU while its ceilings were measured; nothing where no facts lie beside the file."""
    facts = path.with_suffix(".meta.json")
    seen = store.read_json(facts).get("load_at_end", {}) if facts.is_file() else {}
    return disturbance.Load(0.0, 0.0, seen.get("other_cores", 0.0), seen.get("stolen_cores", 0.0), 0.0)


def replay_ceilings(p: MachineParams) -> Ceilings:
    """Read back the newest ceilings of a reference machine; ``device`` auto takes the CPU's.

    Raises InputError when the reference has none for that device.
    """
    wanted = replayed_device(p.device)
    for folder in folders("replay", p.reference):
        if stored := _stored(folder / "ceilings", wanted, f"REPLAY of {{}}, measured {{}} on {folder.name}."):
            return stored
    raise InputError(f"the reference has no ceilings of {wanted}; measure them with source=measure")


def ceilings(p: MachineParams) -> Ceilings:
    """Measure the ceilings of a device, or replay them from the reference data, as ``source`` says."""
    return measure_ceilings(p) if p.source == "measure" else replay_ceilings(p)
