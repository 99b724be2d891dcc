"""The kinds of kernels that have power models: what their features are, and what no fold may split."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib.predict.operators.features_gpu import Chip
from lib.predict.power import attention, features

_WORK = ["phase", "q_len", "kv_len", "head_dim", "sliding_window", "kv_dtype", "kernel"]
Frames = Callable[[pd.DataFrame, Chip], tuple[pd.DataFrame, pd.DataFrame]]


@dataclass(frozen=True)
class Kind:
    """One kind of kernels: ``part`` names it in files, ``table`` holds its published rows, ``folder`` its models under SHIPPED.

    ``groupings`` give the groups that are held out; ``plain`` are the features that default trees get; ``work`` the columns of
    rows that do the same work, where kernels of other shapes may.
    """

    part: str
    table: str
    folder: Path
    frames: Frames
    names: Callable[[Chip], tuple[list[str], list[str]]]
    groupings: Mapping[str, Callable[[pd.DataFrame], pd.Series]]
    plain: tuple[str, ...]
    rounds: int
    work: Callable[[pd.DataFrame], pd.Series] | None = None


def _joined(*columns: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[list(columns)].astype(str).agg("x".join, axis=1)


def _equal_work(rows: pd.DataFrame) -> pd.Series:
    """Return what kernels have in common that compute the same, with heads and sequences exchanged."""
    exchanged = {"all_heads": rows["batch"] * rows["heads"], "all_kv_heads": rows["batch"] * rows["kv_heads"]}
    return _joined(*_WORK, *exchanged)(rows.assign(**exchanged))


GEMM = Kind("gemm power", "power", Path(), features.frames, features.names, {"(N, K)": _joined("gemm_n", "gemm_k")},
            ("m", "n", "k", "latency", "compute_used", "memory_used"), 500)
ATTENTION = Kind("attention power", "attention_power", Path("attention"), attention.frames, attention.names,
                 {"heads": _joined("heads", "kv_heads", "head_dim"), "shapes": _joined("batch", "q_len", "kv_len")},
                 ("batch", "q", "kv", "heads", "kv_heads", "head_dim", "sliding_window", "narrow", "decode", "triton",
                  "latency"), 300, _equal_work)
KINDS = {kind.part: kind for kind in (GEMM, ATTENTION)}
