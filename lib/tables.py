"""The tables: every column with its type, meaning and allowed values, checked strictly on write and on read."""

from dataclasses import dataclass
from functools import cache

from lib.errors import InputError, choices

SCHEMA_VERSION = "1"


@dataclass(frozen=True)
class Column:
    """One column: its kind (text, int, float, bool), what it means, and what values it may hold.

    ``least`` is the smallest value allowed; ``of`` the only texts allowed; ``empty`` says that NaN means "not measured".
    """

    name: str
    kind: str
    meaning: str
    least: float | None = None
    of: tuple[str, ...] = ()
    empty: bool = False


def _text(name: str, meaning: str, *of: str, empty: bool = False) -> Column:
    return Column(name, "text", meaning, of=of, empty=empty)


def _int(name: str, meaning: str, least: float | None = 0) -> Column:
    return Column(name, "int", meaning, least)


def _float(name: str, meaning: str, least: float | None = 0, empty: bool = False) -> Column:
    return Column(name, "float", meaning, least, empty=empty)


def _bool(name: str, meaning: str) -> Column:
    return Column(name, "bool", meaning)


_IDS = (_text("hardware_id", "which machine: a hash of its hardware"),
        _text("software_id", "which software: a hash of versions, threads and math settings"))
_VERDICT = _text("verdict", "how far to trust the row", "stable", "noisy", "unusable")

PROFILE = (
    _text("run_id", "the run, also the start of the file's name"), _text("workload_id", "id in params/workloads.yaml"),
    _text("dataset", "MedMNIST flag or imagefolder"), _text("model", "model name"),
    _text("task_type", "what the pass does", "train", "eval", "test"),
    _text("split", "which part of the dataset", "train", "val", "test"),
    _int("epoch", "epoch from 0; -1 in evaluation", -1), _int("batch_idx", "batch within the pass"),
    _int("global_step", "batches of this pass type so far"), _int("batch_size", "samples in this batch", 1),
    _int("channels", "input channels", 1), _int("dim1", "H (2D) or D (3D)", 1), _int("dim2", "W (2D) or H (3D)", 1),
    _int("dim3", "0 (2D) or W (3D)"), _text("device_type", "cpu, cuda or mps", "cpu", "cuda", "mps"),
    _int("device_index", "-1 on the CPU", -1), _int("num_workers", "loader worker processes"),
    _text("precision", "fp32, or the autocast type", "fp32", "bf16", "fp16"),
    _float("data_time_ms", "loader wait + host-to-device copy"),
    _float("forward_time_ms", "forward pass and loss"), _float("backward_time_ms", "backward pass; 0 in evaluation"),
    _float("step_time_ms", "the whole step, clocked on its own; its phases sum to it"),
    _float("data_time_pct", "data_time_ms / step_time_ms * 100"),
    _float("forward_time_pct", "forward_time_ms / step_time_ms * 100"),
    _float("backward_time_pct", "backward_time_ms / step_time_ms * 100"),
    _float("images_per_sec", "batch_size / step time"), _float("loss", "loss of this batch", None, empty=True),
    _float("lr", "learning rate; empty in evaluation", empty=True),
    _float("cuda_mem_alloc_mb", "allocated by torch on the GPU; 0 elsewhere"),
    _float("cuda_mem_reserved_mb", "reserved by torch on the GPU; 0 elsewhere"),
    _float("wall_time_s", "seconds since the pass began"),
    _float("loader_wait_ms", "waiting for the data loader"), _float("h2d_ms", "host-to-device copy and conversion"),
    _float("optimizer_ms", "optimizer step and zeroing of gradients; 0 in evaluation"),
    _float("pipelined_ms", "mean step of an unsynchronised, unprofiled pass of the same run; empty where not run", empty=True),
    _float("energy_j", "energy of the step; empty: not measured", empty=True),
    _float("peak_rss_mb", "peak resident memory of the process so far"), _int("threads", "torch CPU threads", 1),
    _bool("warmup", "a warm-up row: kept, but left out of statistics"),
    _text("sync", "how phases were clocked", "none", "event", "synchronize"),
    _text("data_source", "where the images came from", "medmnist", "synthetic", "imagefolder"), *_IDS)

RUNS = (
    _text("run_id", "the run"), _text("label", "the run's name for people"), _text("timestamp", "UTC start, ISO 8601"),
    _text("hostname", "machine name"), _text("arch", "model name"), _text("backend", "cpu, cuda or mps", "cpu", "cuda", "mps"),
    _text("device_name", "processor or GPU name"), _int("batch_size", "samples a batch", 1),
    _int("warmup_iters", "warm-up batches, not counted"), _int("measured_iters", "batches of the unsynchronised pass", 1),
    _text("precision", "fp32, or the autocast type", "fp32", "bf16", "fp16"),
    _float("elapsed_sec", "the unsynchronised pass, synchronised before and after"),
    _float("images_per_sec", "images_processed / elapsed_sec"), _int("images_processed", "images in elapsed_sec", 1),
    _text("workload_id", "id in params/workloads.yaml"), _text("dataset", "MedMNIST flag or imagefolder"),
    _text("data_source", "where the images came from", "medmnist", "synthetic", "imagefolder"),
    _text("resolution", "native or resized", "native", "resized"),
    _bool("channels_last", "switch"), _int("grad_accum_steps", "switch", 1), _int("num_workers", "switch"),
    _bool("pin_memory", "switch"), _int("prefetch_factor", "switch; 0 without workers"), _bool("augment", "switch"),
    _bool("deterministic", "switch"), _bool("cudnn_benchmark", "switch"), _bool("tf32", "TF32 allowed on the device"),
    _int("threads", "torch CPU threads", 1), _int("seed", "random seed"),
    _float("cpu_percent", "CPU time of this process and its workers, % of one core"),
    _float("peak_rss_mb", "peak resident memory of the process"),
    _float("other_cpu_cores", "CPU cores that other processes used meanwhile"),
    _float("involuntary_switches_per_s", "times a second that the kernel took the processor away"),
    _float("step_median_ms", "median profiled training step, full batches, warm-up left out", empty=True),
    _float("step_iqr_ms", "its interquartile range", empty=True),
    _float("step_low_ms", "95 % bootstrap interval of the median, low end", empty=True),
    _float("step_high_ms", "95 % bootstrap interval of the median, high end", empty=True),
    _int("step_n", "steps in that median"), _VERDICT,
    _text("reason", "why it is not stable; empty when it is", empty=True), *_IDS)

CEILINGS = (
    _text("device", "cpu, cuda:0 or mps"), _text("dtype", "element type"),
    _float("peak_gflops", "best rate of a matrix product (2 FLOPs a multiply-add); empty on bandwidth rows", empty=True),
    _float("peak_gbps", "triad bandwidth (24 bytes an fp64 element); empty on compute rows", empty=True),
    _text("level", "what serves the working set", "compute", "L1", "L2", "L3", "RAM", "device"),
    _text("source", "measured here or stated by the vendor", "measured", "vendor"), _text("method", "how"),
    _float("working_set_mb", "bytes touched by one call, in 10^6"), _int("threads", "torch CPU threads", 1),
    _float("median_ms", "median time of one call"), _float("iqr_ms", "its interquartile range"), _int("n", "samples", 1),
    _VERDICT, *_IDS)

OVERHEADS = (
    _text("device", "cpu, cuda:0 or mps"), _text("what", "timer_step, timer_call, timer_jitter, launch"),
    _float("median_us", "median"), _float("p99_us", "99th percentile"), _int("n", "samples", 1),
    _text("method", "how"), *_IDS)

TABLES: dict[str, tuple[Column, ...]] = {"profile": PROFILE, "runs": RUNS, "ceilings": CEILINGS, "overheads": OVERHEADS}
DTYPES = {"text": "str", "int": "int64", "float": "float64", "bool": "bool"}


def columns(table: str) -> list[str]:
    """Return the column names of ``table`` in order; InputError lists the tables."""
    if table not in TABLES:
        raise InputError(f"no table {table!r}; there are: {choices(TABLES)}")
    return [column.name for column in TABLES[table]]


@cache
def schema(table: str):
    """Return the strict pandera schema of ``table``."""
    import pandera.pandas as pa

    def one(column: Column):
        checks = []
        if column.least is not None:
            checks.append(pa.Check.in_range(column.least, float("inf"), include_max=False))
        if column.of:
            checks.append(pa.Check.isin(column.of))
        return pa.Column(DTYPES[column.kind], checks, nullable=column.empty, description=column.meaning)

    return pa.DataFrameSchema({c.name: one(c) for c in TABLES[table]}, strict=True, ordered=True, name=table)


def validate(frame, table: str, where: str):
    """Return ``frame`` with the types of ``table``.

    Raises InputError naming ``where``, the column and the first wrong values.
    """
    import pandera.errors

    missing = [name for name in columns(table) if name not in frame]
    extra = [name for name in frame if name not in columns(table)]
    if missing or extra:
        raise InputError(f"{where} is no {table} table: missing columns [{choices(missing)}], unknown [{choices(extra)}]")
    try:
        typed = frame.astype({c.name: DTYPES[c.kind] for c in TABLES[table] if c.kind != "text" or not c.empty})
        return schema(table).validate(typed, lazy=True)
    except pandera.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        raise InputError(f"{where} does not fit the {table} table: column {first['column']!r}, "
                         f"value {first['failure_case']!r} fails {first['check']}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{where} does not fit the {table} table: {error}") from None


def dictionary() -> str:
    """Return the data dictionary of every table as Markdown, for data/README.md."""
    parts = []
    for table, content in TABLES.items():
        rows = [f"| `{c.name}` | {c.kind} | {c.meaning}{' (' + choices(c.of) + ')' if c.of else ''} |" for c in content]
        parts.append(f"### `{table}`\n\n| column | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)
