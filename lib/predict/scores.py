"""The one scorer: how wrong predictions are, with one vote per row or per family, and how right predicted gains are."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from lib.measure.statistics import bootstrap

OUTSIDE = 0.05  # share of the time outside of the training ranges, above which an answer is flagged as out of range
COVER = 0.9  # share of errors that an interval holds
_WITHIN = 10  # %
_HOLDS = 80  # % of a family inside its ranges, at least


def _error_pct(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return relative errors in %; NaN where nothing was measured or predicted."""
    return (np.asarray(predicted, float) / np.where(np.asarray(measured) > 0, measured, np.nan).astype(float) - 1) * 100


def half_interval(error: np.ndarray) -> float:
    """Return half the width of the COVER interval of errors on unseen groups.

    The quantile of their sizes is the finite-sample one, ceil((n + 1) * COVER) of n.
    """
    sizes = np.sort(np.abs(error))
    return float(sizes[min(len(sizes), math.ceil((len(sizes) + 1) * COVER)) - 1])


def score(measured: np.ndarray, predicted: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None,
          interval: bool = True) -> dict[str, float]:
    """Return MAPE, median, p90 and bias, the share within 10 % and the coverage of ``low`` to ``high`` in %, and n.

    ``mape_low`` and ``mape_high`` are the 95 % bootstrap interval of the MAPE (``interval``). Rows without a measurement or a
    prediction are left out; the coverage (``cover``) needs ``low`` and ``high``, and is NaN where one of them is.
    """
    error = _error_pct(measured, predicted)
    scored = np.isfinite(error)
    size = np.abs(error[scored])
    if not len(size):
        return dict.fromkeys(("mape", "median", "p90", "bias", "within_10"), np.nan) | {"n": 0}
    scores = {"mape": float(size.mean()), "median": float(np.median(size)), "p90": float(np.percentile(size, 90)),
              "bias": float(error[scored].mean()), "within_10": float((size <= _WITHIN).mean() * 100), "n": len(size)}
    if interval:
        scores["mape_low"], scores["mape_high"] = bootstrap(size, np.mean)
    if low is not None:
        inside = ((low <= measured) & (measured <= high))[scored]
        scores["cover"] = float(inside.mean() * 100) if np.isfinite(np.asarray(low, float)[scored]).all() else np.nan
    return scores


def score_by(rows: pd.DataFrame, keys: Sequence[str], measured: str = "measured", unit: str = "") -> pd.DataFrame:
    """Return ``score`` of each group of rows, in the order in which groups appear; ``unit`` ends the other columns' names."""
    ends, lines = [f"low{unit}", f"high{unit}"] if f"low{unit}" in rows else [], []
    for key, part in rows.groupby(list(keys), sort=False):
        values = [part[name].to_numpy() for name in (measured, f"predicted{unit}", *ends)]
        lines.append({**dict(zip(keys, key, strict=True)), **score(*values)})
    return pd.DataFrame(lines)


def score_families(rows: pd.DataFrame) -> dict[str, float]:
    """Return MAPE with its bootstrap interval, coverage in % and n, where each ``group`` of rows ``held_out`` has one vote.

    ``short``: the share of groups in % of whose rows less than 80 % lie inside. Nothing where a row states no group.
    """
    error = np.abs(_error_pct(rows["measured"].to_numpy(), rows["predicted"].to_numpy()))
    known = np.isfinite(error) & rows["group"].notna().to_numpy()
    names, place = np.unique(rows["group"].to_numpy(str)[known], return_inverse=True)
    if not len(names) or "" in names:
        return {}
    rows, counts = rows[known], np.bincount(place)
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    with_range = rows["low"].notna().to_numpy()
    mean, ranges = np.bincount(place, error[known]) / counts, np.bincount(place, with_range)
    cover = np.bincount(place, inside & with_range)[ranges > 0] / ranges[ranges > 0] * 100
    low, high = bootstrap(mean, np.mean, draws=200)
    scores = {"mape": float(mean.mean()), "mape_low": low, "mape_high": high, "cover": np.nan, "short": np.nan, "n": len(names)}
    if len(cover):
        scores |= {"cover": float(cover.mean()), "short": float((cover < _HOLDS).mean() * 100)}
    return scores


def _score_rows(rows: pd.DataFrame) -> dict[str, float]:
    """Return ``score`` of rows ``held_out`` without its interval."""
    return score(*(rows[name].to_numpy(float) for name in ("measured", "predicted", "low", "high")), interval=False)


def score_draws(rows: pd.DataFrame, keys: Sequence[str],
                scorer: Callable[[pd.DataFrame], dict[str, float]] = _score_rows) -> pd.DataFrame:
    """Return ``score`` of each group of rows ``held_out`` without its interval, and ``score_families`` as ``family_...``.

    ``scorer``: another one, ``score_gains``. Scores are means over the random choices (``draw``).
    """
    lines = []
    for key, group in rows.groupby(list(keys), sort=False):
        draws = [{**scorer(part), **{f"family_{name}": value for name, value in score_families(part).items()}}
                 for _, part in group.groupby("draw")]
        lines.append({**dict(zip(keys, key, strict=True)), **pd.DataFrame(draws).mean()})
    return pd.DataFrame(lines).astype({"n": int}) if lines else pd.DataFrame(columns=[*keys, "n"])


def score_gains(rows: pd.DataFrame) -> dict[str, float]:
    """Return ``score`` of gains (rows ``held_out`` of factors), and ``sign``: how often their signs are right, in %.

    ``constant_...``: both of a constant, the median gain of the other folds, whose sign says *always*.
    """
    measured = rows["measured"].to_numpy(float)
    scores = {}
    for name, gains in (("", rows["predicted"].to_numpy(float)), ("constant_", constants(measured, rows["fold"].to_numpy()))):
        right = np.sign(np.log(gains)) == np.sign(np.log(measured))
        scores |= {f"{name}mape": _score_rows(rows.assign(predicted=gains))["mape"], f"{name}sign": float(right.mean() * 100)}
    return {**_score_rows(rows), **scores}


def constants(measured: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return for each row the (geometric) median gain of the other folds; NaN where there is no other."""
    answer = np.full(len(fold), np.nan)
    for number in np.unique(fold):
        other = np.log(measured[fold != number])
        answer[fold == number] = np.exp(np.median(other)) if len(other) else np.nan
    return answer
