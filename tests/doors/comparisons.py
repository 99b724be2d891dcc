"""The door of ``compare``: two sweeps, of which one may hold what cannot be compared."""

import math
from functools import cache
from pathlib import Path

import pandas as pd
from hypothesis import strategies as st

from lib import paths, store
from lib.measure import compare
from tests.doors import SAME, WRONG, Door, LetThroughError, pass_through


@cache
def _original() -> pd.DataFrame:
    """Return eight good rows of a reference sweep."""
    path = sorted(paths.REFERENCE.glob("*/sweeps/*/sweep.parquet"))[0]
    table = store.read(path, "sweep")
    return table[(table["status"] == "ok") & (table["verdict"] == "stable")].head(8).reset_index(drop=True)


def _scaled(table: pd.DataFrame, by: float) -> pd.DataFrame:
    return table.assign(**{name: table[name] * by for name in ("latency_ms", "low_ms", "high_ms", "latency_iqr_ms")})


def _attempt(data: st.DataObject, folder: Path) -> str:
    a, b = _original(), _original()
    how = data.draw(
        st.sampled_from(["as it is", "slower", "no threshold", "no latencies", "doubled", "truncated", "nothing in common"]),
        label="how",
    )
    kind, word, threshold = SAME, "same", 0.03
    if how == "slower":
        factor = data.draw(st.floats(1.2, 50), label="factor")
        b, word = _scaled(b, factor), "slower"
    elif how == "no threshold":
        kind, threshold = WRONG, data.draw(st.sampled_from([math.nan, math.inf, -math.inf, -0.1]), label="threshold")
    elif how == "no latencies":
        kind, b = WRONG, b.assign(latency_ms=math.nan, low_ms=math.nan, high_ms=math.nan)
    elif how == "doubled":
        b = pd.concat([b, b.iloc[: data.draw(st.integers(1, 8))]], ignore_index=True)
        kind = WRONG
    elif how == "nothing in common":
        kind, b = WRONG, b.assign(config="another", op="another")
    for name, table in (("a", a), ("b", b)):
        store.write(table, folder / name / "sweep.parquet", "sweep")
    if how == "truncated":
        path = folder / data.draw(st.sampled_from("ab")) / "sweep.parquet"
        content = path.read_bytes()
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1), label="length")])
        kind = WRONG
    return pass_through(lambda: _word(folder, threshold, how, len(a)), kind, f"compare: {how}", word)


def _word(folder: Path, threshold: float, how: str, pairs: int) -> str:
    difference = compare.difference(str(folder / "a"), str(folder / "b"), threshold)
    if len(difference.pairs) > pairs:
        raise LetThroughError(f"compare: {how}: {len(difference.pairs)} pairs of {pairs} configurations")
    return difference.word


DOOR = Door("compare", _attempt)
