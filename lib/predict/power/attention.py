"""What the power of an attention kernel depends on: how busy it keeps tensor cores and memory, its heads, lengths and waves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.predict.operators.features_gpu import Chip
from lib.predict.power.features import utilisation

_NUMBERS = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "sliding_window", "flops", "bytes", "latency_ms")
_TILES = (64, 128, 256)  # queries that a block of threads takes together


def frames(rows: pd.DataFrame, chip: Chip) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms (their rates are watts) and features of attention, from the columns of ``attention_power``."""
    numbers = {name: rows[name].to_numpy(float) for name in _NUMBERS}
    texts = {"narrow": rows["kv_dtype"] == "fp8", "decode": rows["phase"] == "decode",
             "triton": rows["kernel"].str.contains("triton", regex=False)}
    terms, x = _values({**numbers, **{name: values.to_numpy(float) for name, values in texts.items()}}, chip)
    return tuple(pd.DataFrame(values, index=rows.index, dtype=float) for values in (terms, x))


def names(chip: Chip) -> tuple[list[str], list[str]]:
    """Return the names of the terms and of the features."""
    return tuple(list(values) for values in _values(dict.fromkeys((*_NUMBERS, "narrow", "decode", "triton"), np.ones(1)), chip))


def _values(row: Mapping[str, Any], chip: Chip) -> tuple[dict[str, Any], dict[str, Any]]:
    terms, used = utilisation(row, chip)
    batch, heads, kv_heads, q_len, kv_len = (row[name] for name in ("batch", "heads", "kv_heads", "q_len", "kv_len"))
    reach = np.where(row["sliding_window"] > 0, np.minimum(row["sliding_window"], kv_len), kv_len)
    item = np.where(row["narrow"] > 0, chip.item / 2, chip.item)
    cached = 2 * batch * kv_len * kv_heads * row["head_dim"] * item
    logs = {"batch": batch, "q": q_len, "kv": kv_len, "heads": heads, "kv_heads": kv_heads, "shared": heads / kv_heads,
            "reach": reach, "latency": row["latency_ms"], "flops": row["flops"], "bytes": row["bytes"],
            "intensity": row["flops"] / row["bytes"], "all_heads": batch * heads, "all_kv_heads": batch * kv_heads,
            "tokens": batch * q_len, "cached": cached / chip.cache_bytes}
    x = {name: np.log2(value) for name, value in logs.items()}
    x |= {name: row[name] for name in ("head_dim", "sliding_window", "narrow", "decode", "triton")} | used
    x |= {f"log_{name}": np.log2(value) for name, value in used.items()}
    blocks = {f"{tile}": batch * heads * np.ceil(q_len / tile) for tile in _TILES}
    blocks["shared"] = batch * kv_heads * np.ceil(q_len * heads / kv_heads / _TILES[1])  # heads that share keys, in one block
    for name, count in blocks.items():
        waves = count / chip.multiprocessors
        x |= {f"waves_{name}": np.log2(waves), f"unfilled_{name}": np.ceil(waves) / waves}
    return terms, x
