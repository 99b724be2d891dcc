"""Power of attention kernels as aiconfigurator publishes it (NVIDIA, Apache-2.0): vLLM with a paged cache of keys and values.

The collector repeats a call at most 3000 times, and NVML's reading is a mean of the last second that is first taken before the
calls begin. So calls below a 3000th of a second never fill that second, and their reading is rather that of what ran before;
even those that fill it share about half of their reading with what ran before.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure import importers
from lib.measure.published import power
from lib.tables import columns

SHORT_MS = 1e3 / 3000  # 3000 calls fill the second that the sensor averages
SHAPE = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "sliding_window")
PHASES = {"context": "prefill", "generation": "decode"}
_TEXTS = ("framework", "version", "device", "op_name", "kernel_source", "attn_dtype", "kv_cache_dtype")
_COUNTS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "beam_width", "step", "window_size")
_COLUMNS = (*_TEXTS, *_COUNTS, *power.READINGS)
_DTYPES = {**importers.AICONFIGURATOR_DTYPES, "fp8": "fp8"}
_ITEM = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def pairs(q_len: np.ndarray, kv_len: np.ndarray, sliding_window: np.ndarray) -> np.ndarray:
    """Return how many pairs of query and key causal attention has in a head: queries are the last of the ``kv_len`` tokens."""
    reach = np.where(sliding_window > 0, np.minimum(sliding_window, kv_len), kv_len).astype(float)
    first = kv_len - q_len + 1.0  # keys before or at the first query
    rising = np.clip(reach - first, 0, q_len)  # queries that see all before them
    return rising * first + rising * (rising - 1) / 2 + (q_len - rising) * np.minimum(reach, kv_len)


def read(folder: Path | None = None) -> dict[str, pd.DataFrame]:
    """Return an ``attention_power`` table a device: of each framework its newest version with power.

    A folder without such power gives none. Raises InputError for a file with other columns, or cells that are no such numbers.
    """
    return power.newest_tables(folder, [f"attention/*/*/{phase}_attention_perf.parquet" for phase in PHASES], _table,
                               any)


def _table(path: Path, device: str) -> pd.DataFrame:
    frame = store.read_parquet(path, _COLUMNS).astype(dict.fromkeys(_TEXTS, str))
    original = path.name.partition("_")[0]
    _refuse(frame, path, frame["op_name"] != f"{original}_attention", "op_name", f"{original}_attention")
    frame = importers.checked(frame, path, _COUNTS, power.READINGS)
    _refuse(frame, path, frame["beam_width"] != 1, "beam_width", "1: beams are not known here")
    uneven = frame["num_heads"] % frame["num_key_value_heads"] != 0
    _refuse(frame, path, uneven, "num_key_value_heads", "a divisor of num_heads")
    dtypes = {name: frame[name].map(_DTYPES) for name in ("attn_dtype", "kv_cache_dtype")}
    for name, values in dtypes.items():
        _refuse(frame, path, values.isna(), name, f"one of {choices(_DTYPES)}")
    table = power.readings(frame, path, device, SHORT_MS).assign(
        op="attention", phase=PHASES[original], batch=frame["batch_size"], heads=frame["num_heads"],
        kv_heads=frame["num_key_value_heads"], head_dim=frame["head_dim"], q_len=frame["isl"],
        kv_len=frame["isl"] + frame["step"], sliding_window=frame["window_size"], dtype=dtypes["attn_dtype"],
        kv_dtype=dtypes["kv_cache_dtype"], kernel=frame["kernel_source"])
    return table.assign(**work(table))[columns("attention_power")]


def _refuse(frame: pd.DataFrame, path: Path, wrong: pd.Series, name: str, right: str) -> None:
    if wrong.any():
        row, value = importers.row_name(wrong.idxmax()), frame[name][wrong].iloc[0]
        raise InputError(f"{path}: {row} has {value!r} as {name}: it is {right}")


def work(table: Mapping[str, pd.Series]) -> dict[str, np.ndarray]:
    """Return ``flops`` and compulsory ``bytes`` of causal attention, from the shape columns of ``attention_power``."""
    batch, heads, kv_heads, size, q_len, kv_len, window = (np.asarray(table[name], float) for name in SHAPE)
    visible = np.where(window > 0, np.minimum(kv_len, q_len + window - 1), kv_len)
    item, kv_item = (np.array([_ITEM[dtype] for dtype in table[name]]) for name in ("dtype", "kv_dtype"))
    return {"flops": 4.0 * batch * heads * size * pairs(q_len, kv_len, window),
            "bytes": batch * size * (2 * q_len * heads * item + 2 * visible * kv_heads * kv_item)}


def bring_in(folder: Path | None) -> dict[str, tuple[Path, pd.DataFrame]]:
    """Write published power of attention into ``data/imported/<device>/power``; return file and table by device."""
    return importers.write(read(folder), "attention_power", "aiconfigurator", folder, "power", "aiconfigurator")
