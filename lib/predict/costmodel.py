"""Operator models: the time of a kernel from its shapes, with an interval and a warning outside of what was learned.

Physics first: what costs time in proportion (products in whole blocks, elements read and written, the call), each at a rate
fitted to the device, never negative. Gradient-boosted trees (LightGBM) then learn by what factor an operator departs from
that sum. Intervals are conformal: the errors made on groups that a fold had not seen, by predicted size (cross-conformal
predictors: Vovk, 2015).
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.predict import features

SCHEMA = 1
COVER = 0.9
LEAST_ROWS = 40
LEAST_MS = 1e-4
FOLDS = 5
_BINS = 4  # of predicted time: small kernels err otherwise than large ones
_BAGS = 3
TREES: dict[str, Any] = {"objective": "regression_l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 8,
                         "feature_fraction": 0.6, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "verbosity": -1,
                         "num_threads": 2, "deterministic": True, "force_row_wise": True}
_ROUNDS = 600


@dataclass
class Part:
    """What was learned of one group of families and one pass."""

    rates_ms: dict[str, float]  # what one of each term costs
    trees: list[str]
    names: list[str]
    ranges: dict[str, tuple[float, float]]
    kinds: list[list[str]]
    edges_ms: list[float]
    halves: list[float]  # of the interval, in log time, by bin of predicted time
    rows: int
    scores: dict[str, float] = field(default_factory=dict)


def part_name(op: str, passes: str) -> str:
    """Return the name of the part that answers for a family and a pass."""
    return f"{features.group_of(op)} {passes}"


def usable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a ``sweep`` table that a model may learn from.

    Raises InputError for times that are not positive numbers, and for a mixture of machines, devices, element types or ways
    of timing, which one model cannot answer for.
    """
    good = table[(table["status"] == "ok") & (table["verdict"] != "unusable")].copy()
    bad = good[~(good["latency_ms"] > 0) | ~np.isfinite(good["latency_ms"])]
    if len(bad):
        raise InputError(f"{len(bad)} rows have no positive time, the first is {bad['op'].iloc[0]} {bad['config'].iloc[0]}: "
                         f"{bad['latency_ms'].iloc[0]} ms")
    for column in ("hardware_id", "device", "dtype", "latency_type", "cache"):
        if len(set(good[column])) > 1:
            raise InputError(f"one model answers for one {column}, the table has {choices(sorted(good[column].unique()))}")
    return good


def shapes_of(table: pd.DataFrame) -> pd.Series:
    """Return for each row the group that may not be split: the same family and shape, whatever its pass, bias or kind."""
    held = [name for name in (*features.NUMBERS,) if name in table]
    sizes = table[held].astype(float).fillna(-1).itertuples(index=False, name=None)
    return pd.Series([f"{op} {size}" for op, size in zip(table["op"], sizes, strict=True)], index=table.index)


def rates(terms: pd.DataFrame, measured_ms: np.ndarray) -> np.ndarray:
    """Return what one of each term costs, in ms: least squares of the relative error without negative rates (SciPy's nnls)."""
    from scipy.optimize import nnls

    scale = terms.to_numpy().max(axis=0) + 1e-30
    found, _ = nnls(terms.to_numpy() / scale / measured_ms[:, None], np.ones(len(terms)), maxiter=1000)
    return found / scale


def shares(terms: pd.DataFrame, costs: np.ndarray) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the sum of the terms' costs in ms, at least LEAST_MS, and the logarithm of each term's share of it."""
    parts = terms.to_numpy() * costs
    total = np.maximum(parts.sum(axis=1), LEAST_MS)
    used = costs > 0
    names = [f"share_{name}" for name, use in zip(terms, used, strict=True) if use]
    return total, pd.DataFrame(np.log2(parts[:, used] / total[:, None] + 1e-6), index=terms.index, columns=names)


def _train(x: pd.DataFrame, y: np.ndarray, seed: int, rounds: int):
    import lightgbm

    return lightgbm.train({**TREES, "seed": seed}, lightgbm.Dataset(x, y, free_raw_data=False), rounds)


def _bag(x: pd.DataFrame, y: np.ndarray, seeds: int = _BAGS, rounds: int = _ROUNDS) -> list:
    return [_train(x, y, seed, rounds) for seed in range(seeds)]


def out_of_fold(terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray, groups: pd.Series, folds: int = FOLDS,
                learn: Callable[[pd.DataFrame, pd.DataFrame, np.ndarray], "Learned"] | None = None) -> np.ndarray:
    """Return for each row the time in ms that a model predicts which saw none of its group."""
    from sklearn.model_selection import GroupKFold

    said = np.full(len(measured_ms), np.nan)
    for train, test in GroupKFold(folds, shuffle=True, random_state=0).split(x, measured_ms, groups):
        learned = (learn or Learned.of)(terms.iloc[train], x.iloc[train], measured_ms[train])
        said[test] = learned.predict(terms.iloc[test], x.iloc[test])
    return said


@dataclass
class Learned:
    """Rates and trees of one part."""

    costs: np.ndarray
    boosters: list

    @classmethod
    def of(cls, terms: pd.DataFrame, x: pd.DataFrame, measured_ms: np.ndarray) -> "Learned":
        """Learn from terms, features and times."""
        costs = rates(terms, measured_ms)
        total, known = shares(terms, costs)
        return cls(costs, _bag(pd.concat([x, known], axis=1), np.log(measured_ms / total)))

    def predict(self, terms: pd.DataFrame, x: pd.DataFrame) -> np.ndarray:
        """Return times in ms."""
        total, known = shares(terms, self.costs)
        given = pd.concat([x, known], axis=1)
        return total * np.exp(np.mean([booster.predict(given) for booster in self.boosters], axis=0))


def conformal(error: np.ndarray, size: np.ndarray, bins: int = _BINS) -> tuple[list[float], list[float]]:
    """Return bin edges of ``size`` and the half width of a COVER interval in each, from errors on unseen groups.

    The quantile is the finite-sample one, ceil((n + 1) * COVER) of n.
    """
    bins = max(1, min(bins, len(error) // 60))
    edges = list(np.quantile(size, np.arange(1, bins) / bins))
    place, halves = np.searchsorted(edges, size), []
    for number in range(bins):
        part = np.sort(np.abs(error[place == number]))
        halves.append(float(part[min(len(part) - 1, int(np.ceil((len(part) + 1) * COVER)) - 1)]))
    return edges, halves


def score(measured: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return MAPE with a bootstrap interval, median and p90 of the absolute error in %, the share within 10 %, and n."""
    error = np.abs(predicted / measured - 1) * 100
    drawn = np.random.default_rng(0).choice(error, (1000, len(error))).mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {"mape": float(error.mean()), "mape_low": float(low), "mape_high": float(high), "median": float(np.median(error)),
            "p90": float(np.percentile(error, 90)), "within_10": float((error <= 10).mean() * 100), "n": len(error)}


@dataclass
class CostModel:
    """Operator models of one device, one element type and one way of timing."""

    device: str
    facts: dict[str, Any]
    parts: dict[str, Part] = field(default_factory=dict)

    def __post_init__(self):
        self._learned: dict[str, Learned] = {}

    # ------------------------------------------------------------------------------------------ many

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``predicted_ms, low_ms, high_ms, predicted_gbps, out_of_range`` for each row of a ``sweep`` table.

        Raises InputError for a family or pass that the model has not learned.
        """
        parts = []
        for name, rows in _by_part(table):
            part = self._part(name)
            group = name.partition(" ")[0]
            x = features.matrix(rows, group)
            middle = self._loaded(name).predict(features.terms(rows, group), x)
            half = np.array(part.halves)[np.searchsorted(part.edges_ms, middle)]
            outside = np.zeros(len(x), bool)
            for column, (low, high) in part.ranges.items():
                outside |= ((x[column] < low) | (x[column] > high)).to_numpy()
            outside |= ~_kinds(rows).isin([tuple(kind) for kind in part.kinds]).to_numpy()
            parts.append(pd.DataFrame({"predicted_ms": middle, "low_ms": middle * np.exp(-half),
                                       "high_ms": middle * np.exp(half),
                                       "predicted_gbps": rows["bytes"].to_numpy(float) / middle / 1e6,
                                       "out_of_range": outside}, index=rows.index))
        return pd.concat(parts).reindex(table.index)

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            raise InputError(f"the model of {self.device} has not learned {name}; it knows: {choices(self.parts)}")
        return self.parts[name]

    def _loaded(self, name: str) -> Learned:
        import lightgbm

        if name not in self._learned:
            part = self._part(name)
            self._learned[name] = Learned(np.array(list(part.rates_ms.values())),
                                          [lightgbm.Booster(model_str=text) for text in part.trees])
        return self._learned[name]

    # ------------------------------------------------------------------------------------------ files

    def save(self, path: Path) -> Path:
        """Write the model as compressed JSON: LightGBM's text, ranges, intervals, scores and provenance."""
        content = {"schema": SCHEMA, "device": self.device, "facts": self.facts,
                   "parts": {name: asdict(part) for name, part in self.parts.items()}}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        temporary.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        temporary.replace(path)
        return path

    @classmethod
    def load(cls, path: Path) -> "CostModel":
        """Read a model back; InputError says what is wrong with a damaged file or one of a later version. Runs no code."""
        try:
            content = json.loads(gzip.decompress(path.read_bytes()))
            if content["schema"] > SCHEMA:
                raise InputError(f"{path} is of version {content['schema']}, this program reads up to {SCHEMA}: update it")
            parts = {name: Part(**part) for name, part in content["parts"].items()}
            return cls(content["device"], content["facts"], parts)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is no cost model, or is damaged ({type(error).__name__}: {error})") from None


def _by_part(table: pd.DataFrame):
    unknown = set(table["op"]) - set(features.GROUP_OF)
    if unknown:
        raise InputError(f"no features for {choices(sorted(unknown))}; there are: {choices(features.GROUP_OF)}")
    return table.groupby(table["op"].map(features.GROUP_OF) + " " + table["pass"], sort=False)


def _kinds(rows: pd.DataFrame) -> pd.Series:
    """Return family, kind and layout of each row, which a model must have seen to answer."""
    texts = [rows[name].fillna("") if name in rows else pd.Series("", index=rows.index) for name in ("op", "kind", "layout")]
    return pd.Series(list(zip(*texts, strict=True)), index=rows.index, dtype=object)


def fit(table: pd.DataFrame, facts: Mapping[str, Any] | None = None) -> CostModel:
    """Learn from a ``sweep`` table, or one like it; groups with fewer than LEAST_ROWS rows are left out and named in ``facts``.

    Raises InputError for what ``usable`` refuses, and when no group has enough rows.
    """
    good = usable(table)
    left, model = {}, CostModel(str(good["device"].iloc[0]) if len(good) else "", dict(facts or {}))
    for name, rows in _by_part(good):
        if len(rows) < LEAST_ROWS:
            left[name] = len(rows)
            continue
        model.parts[name] = _fit_part(name, rows)
    if not model.parts:
        raise InputError(f"too few rows: a group needs {LEAST_ROWS}, there are {left or 'none'}")
    model.facts["left_out"] = left
    return model


def _fit_part(name: str, rows: pd.DataFrame) -> Part:
    group, measured_ms = name.partition(" ")[0], rows["latency_ms"].to_numpy()
    x, terms = features.matrix(rows, group), features.terms(rows, group)
    said = out_of_fold(terms, x, measured_ms, shapes_of(rows))
    edges, halves = conformal(np.log(measured_ms / said), said)
    learned = Learned.of(terms, x, measured_ms)
    ranges = {column: (float(x[column].min()), float(x[column].max())) for column in x if column not in features.TEXTS}
    return Part(dict(zip(terms, map(float, learned.costs), strict=True)),
                [booster.model_to_string() for booster in learned.boosters], list(x), ranges,
                [list(kind) for kind in sorted(set(_kinds(rows)))], edges, halves, len(rows), score(measured_ms, said))
