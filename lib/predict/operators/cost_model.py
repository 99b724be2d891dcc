"""Operator models: the time of a kernel from its shapes, with an interval and a warning outside of what was learned.

One model answers for one device, one element type and one way of timing. It has a part for each group of families and pass.
Intervals are conformal: the errors made on groups of shapes that a fold had not seen, by predicted size (cross-conformal
predictors: Vovk, 2015).
"""

import gzip
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.predict.operators import features, features_gpu
from lib.predict.operators.augmentation import between
from lib.predict.operators.correction import Correction
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.regressors import LEAST_MS, Boosted, Ensemble, Regressor, Student, of_plain, rates, weights
from lib.predict.operators.validation import conformal, score, shapes_of, usable

__all__ = ["LEAST_MS", "CostModel", "Part", "conformal", "fit", "rates", "score", "shapes_of", "usable"]
SCHEMA = 3
_RETRAIN = ("train it again with: python -m lib models --train cpu, neusight or aiconfigurator; a calibrated one with: "
            "python -m lib calibrate")
LEAST_ROWS = 40
FOLDS = 5
_QUICK_FOLDS = 3
_KIND = ("op", "kind", "layout")
_CORRECTED = ("log_flops", "log_bytes", "log_compute", "log_move", "over_ridge", "m", "n", "k", "window", "ins", "outs",
              "groups")  # the features over which a correction is smooth


Giver = Callable[[pd.DataFrame], tuple[pd.DataFrame, pd.DataFrame]]  # rows of one part -> their terms and features


@dataclass
class Part:
    """What was learned of one group of families and one pass, where it holds, and how wrong it was on unseen shapes."""

    learned: Regressor
    features: list[str]  # all that an operator has; the regressor uses those that varied in training
    ranges: dict[str, tuple[float, float]]
    kinds: list[list[str]]
    edges_ms: list[float]
    halves: list[float]  # of the interval, in log time, by bin of predicted time
    rows: int
    scores: dict[str, float] = field(default_factory=dict)
    correction: Correction | None = None
    origin: str = ""  # of whom this was learned, where it was another device: then every answer is out of range
    unseen: pd.DataFrame | None = None  # predicted_ms, low_ms, high_ms of each row by a fold that had not seen it; not saved

    @cached_property
    def codes(self) -> frozenset[int]:
        """Give the codes of family, kind and layout that were seen."""
        return frozenset(_code(*(float(features.code(name, text)) for name, text in zip(_KIND, kind, strict=True)))
                         for kind in self.kinds)

    @cached_property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the least and largest value of each feature that was seen."""
        return _limits(self.ranges, self.features)

    @cached_property
    def places(self) -> list[int]:
        """Give where the regressor's features lie among all features."""
        return [self.features.index(name) for name in self.learned.names]

    def outside(self, x: pd.DataFrame) -> np.ndarray:
        """Return whether each row of features lies beyond the least or largest value that was seen."""
        return _beyond(self.limits, x[self.features].to_numpy(float))

    def middle(self, terms: pd.DataFrame, x: pd.DataFrame, outside: np.ndarray) -> np.ndarray:
        """Return the predicted ms for terms, features and whether each row is out of range."""
        middle = self.learned.predict(terms.to_numpy(float), x[list(self.learned.names)].to_numpy(float), outside)
        return middle * np.exp(self.correction(x[self.correction.names].to_numpy(float))) if self.correction else middle

    def plain(self) -> dict[str, Any]:
        """Return everything as what JSON can hold."""
        names = ("features", "ranges", "kinds", "edges_ms", "halves", "rows", "scores", "origin")
        return {**{name: getattr(self, name) for name in names},
                "learned": self.learned.plain(), "correction": asdict(self.correction) if self.correction else None}

    @classmethod
    def of_plain(cls, content: dict[str, Any]) -> "Part":
        """Read what ``plain`` gave."""
        correction = content.pop("correction")
        return cls(of_plain(content.pop("learned")), **content,
                   correction=Correction(**correction) if correction else None)


def part_name(op: str, passes: str) -> str:
    """Return the name of the part of a CPU's model that answers for a family and a pass."""
    return f"{features.group_of(op)} {passes}"


@dataclass
class CostModel:
    """Operator models of one device, one element type and one way of timing; ``chip`` is None for a CPU."""

    device: str
    facts: dict[str, Any]
    parts: dict[str, Part] = field(default_factory=dict)
    chip: Chip | None = None
    compositions: dict[str, dict[str, Any]] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------ questions

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``predicted_ms, low_ms, high_ms, predicted_gbps, out_of_range`` for each row of a ``sweep`` table.

        Raises InputError for a family or pass that the model has not learned.
        """
        parts = []
        for name, rows in by_part(table, self.chip is not None):
            part, answering = self._part(name), self._part_of(name)
            terms, x = given(rows, self.chip, answering)
            outside = part.outside(x)
            middle = part.middle(terms, x, outside)
            half = np.array(part.halves)[np.searchsorted(part.edges_ms, middle)]
            outside |= bool(part.origin) or answering != name
            outside |= ~np.isin(codes_of(rows), list(part.codes))
            parts.append(pd.DataFrame({"predicted_ms": middle, "low_ms": middle * np.exp(-half),
                                       "high_ms": middle * np.exp(half),
                                       "predicted_gbps": rows["bytes"].to_numpy(float) / middle / 1e6,
                                       "out_of_range": outside, "origin": self._origin(name)}, index=rows.index))
        return pd.concat(parts).reindex(table.index)

    def _origin(self, name: str) -> str:
        """Return of whom the answer for a part was learned: empty for kernels of this device."""
        answering = self._part_of(name)
        if self.parts[answering].origin or answering == name:
            return self.parts[answering].origin
        return f"its {answering}"

    def predict_one(self, op: str, parameters: Mapping[str, Any], flops: float, moved: float,
                    passes: str = "forward") -> tuple[float, float, float]:
        """Return predicted, low and high ms of one operator, without a DataFrame; ``moved`` are its compulsory bytes.

        Raises InputError for a family or pass that the model has not learned, and for a GPU's model, which answers tables.
        """
        part, middle, _ = self._middle(op, parameters, flops, moved, passes)
        half = part.halves[bisect_left(part.edges_ms, middle)]
        return middle, middle * exp(-half), middle * exp(half)

    def judge_one(self, op: str, parameters: Mapping[str, Any], flops: float, moved: float,
                  passes: str = "forward") -> tuple[float, bool]:
        """Return the predicted ms of one operator, and whether it lies outside of what was learned; raises as predict_one."""
        part, middle, x = self._middle(op, parameters, flops, moved, passes)
        code = _code(*(float(features.code(name, parameters.get(name, "") if name != "op" else op)) for name in _KIND))
        return middle, bool(part.origin) or code not in part.codes or bool(_beyond(part.limits, np.array(x)))

    def _middle(self, op: str, parameters: Mapping[str, Any], flops: float, moved: float,
                passes: str) -> tuple[Part, float, list[float]]:
        if self.chip is not None:
            raise InputError("a GPU's model answers tables; use predict")
        part = self._part(part_name(op, passes))
        terms, x = features.vector(op, parameters, flops, moved)
        middle = part.learned.one(terms, [x[place] for place in part.places])
        if part.correction:
            chosen = [x[part.features.index(column)] for column in part.correction.names]
            middle *= float(np.exp(part.correction(np.array([chosen])))[0])
        return part, middle, x

    def _part_of(self, name: str) -> str:
        """Return the part that answers for ``name``.

        On a GPU without backward kernels the forward ones do, by FLOPs and bytes; without convolutions the GEMMs do, as which a
        library computes them.
        """
        if self.chip is None or name in self.parts:
            return name
        group = name.partition(" ")[0]
        others = [f"{group} forward", *(["product forward"] if group == "convolution" else [])]
        return next((other for other in others if other in self.parts), name)

    def _part(self, name: str) -> Part:
        answering = self._part_of(name)
        if answering not in self.parts:
            raise InputError(f"the model of {self.device} has not learned {name}; it knows: {choices(self.parts)}")
        return self.parts[answering]

    # ------------------------------------------------------------------------------------------ other devices

    def on(self, vendor: VendorDevice, dtype: str) -> "CostModel":
        """Return this model of GPUs asked about another one, of which only the vendor's ceilings are known."""
        facts = {**self.facts, "hardware_id": f"vendor:{vendor.id}", "dtype": dtype,
                 "peak_gflops": vendor.peak_gflops[dtype], "peak_gbps": vendor.peak_gbps}
        origin = self.device if self.facts.get("dtype", dtype) == dtype else f"{self.device} {self.facts['dtype']}"
        parts = {name: replace(part, origin=origin) for name, part in self.parts.items()}
        return CostModel(vendor.id, facts, parts, Chip.of(vendor, dtype))

    def corrected(self, table: pd.DataFrame) -> "CostModel":
        """Return this model taught by a few measured rows of another device: factors, intervals and ranges from them.

        Parts without LEAST_ROWS / 4 rows get the median factor of the others. Intervals come from rows left out in turn.
        """
        good = usable(table)
        found, factors, parts = {}, [], {}
        for name, rows in by_part(good, self.chip is not None):
            if len(rows) < LEAST_ROWS // 4 or self._part_of(name) not in self.parts:
                continue
            found[name] = _correct(self, name, rows)
            factors.append(found[name].correction.mean)
        for name, part in self.parts.items():
            shift = float(np.median(factors)) if factors else 0.0
            parts[name] = found.get(name) or replace(part, correction=_shift(shift), origin=part.origin or self.device)
        return replace(self, parts=parts)

    # ------------------------------------------------------------------------------------------ files

    def save(self, path: Path) -> Path:
        """Write the model as compressed JSON: arrays (a GPU's: LightGBM's text too), ranges, intervals, scores, provenance."""
        content = {"schema": SCHEMA, "device": self.device, "facts": self.facts, "compositions": self.compositions,
                   "chip": asdict(self.chip) if self.chip else None,
                   "parts": {name: part.plain() for name, part in self.parts.items()}}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        temporary.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        temporary.replace(path)
        return path

    @classmethod
    def load(cls, path: Path) -> "CostModel":
        """Read a model back; InputError says what is wrong with a damaged file or one of another schema. Runs no code."""
        try:
            content = json.loads(gzip.decompress(path.read_bytes()))
            if content["schema"] != SCHEMA:
                raise InputError(f"{path} is a cost model of schema {content['schema']}, this program reads schema {SCHEMA}: "
                                 + (_RETRAIN if content["schema"] < SCHEMA else "update the program"))
            parts = {name: Part.of_plain(part) for name, part in content["parts"].items()}
            return cls(content["device"], content["facts"], parts, Chip(**content["chip"]) if content["chip"] else None,
                       content["compositions"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is no cost model, or is damaged ({type(error).__name__}: {error})") from None


def given(rows: pd.DataFrame, chip: Chip | None, part: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms and features of rows of one part; on a GPU as ``part`` sees them, empty for their own part."""
    if chip is not None:
        group = part.partition(" ")[0] or features_gpu.groups_of(rows).iloc[0]
        return features_gpu.terms(rows, chip, group), features_gpu.matrix(rows, chip, group)
    group = features.group_of(rows["op"].iloc[0])
    return features.terms(rows, group), features.matrix(rows, group)


def by_part(table: pd.DataFrame, gpu: bool) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each part with its name; InputError for families without features."""
    groups = features_gpu.groups_of(table) if gpu else features.groups_of(table)
    yield from table.groupby(groups + " " + table["pass"], sort=False)


def kinds_of(rows: pd.DataFrame) -> set[tuple[str, ...]]:
    """Return the families, kinds and layouts in a table, which a model must have seen to answer."""
    texts = [rows[name].fillna("") if name in rows else pd.Series("", index=rows.index) for name in _KIND]
    return set(zip(*texts, strict=True))


def _code(op, kind, layout):
    return (op * 100 + kind + 1) * 100 + layout + 1


def codes_of(rows: pd.DataFrame) -> np.ndarray:
    """Return family, kind and layout of each row as one number."""
    return _code(*(features.code(name, rows[name]) if name in rows else np.full(len(rows), -1.0) for name in _KIND))


def fit(table: pd.DataFrame, facts: Mapping[str, Any] | None = None, chip: Chip | None = None, quick: bool = False,
        groups: pd.Series | None = None, tell: Callable[[str], None] = lambda name: None) -> CostModel:
    """Learn from a ``sweep`` table, or one like it; parts with fewer than LEAST_ROWS rows are left out and named in ``facts``.

    ``groups``, aligned with the table, says which rows may not be split in judging the intervals (default: equal shapes).
    Raises InputError for what ``usable`` refuses, and when no part has enough rows.
    """
    good = usable(table)
    left, model = {}, CostModel(str(good["device"].iloc[0]) if len(good) else "", dict(facts or {}), chip=chip)
    for name, rows in by_part(good, chip is not None):
        if len(rows) < LEAST_ROWS:
            left[name] = len(rows)
            continue
        tell(name)
        kept = None if groups is None else groups.loc[rows.index]
        model.parts[name] = fit_part(rows, partial(given, chip=chip), quick, kept, small=chip is None)
    if not model.parts:
        raise InputError(f"too few rows: a part needs {LEAST_ROWS}, there are {left or 'none'}")
    model.facts["left_out"] = left
    return model


def learn(rows: pd.DataFrame, give: Giver, quick: bool = False, small: bool = True) -> Boosted | Student:
    """Learn from rows of one part, without judging what was learned; ``small``: as one small network, else as trees."""
    terms, x = give(rows)
    measured = rows["latency_ms"].to_numpy(), weights(rows)
    if not small:
        return Boosted.of(terms, x, *measured)
    teacher = Ensemble.of(terms, x, *measured, quick)

    def more(count: int) -> tuple[np.ndarray, np.ndarray]:
        terms, x = give(between(rows, count))
        return terms.to_numpy(float), x.to_numpy(float)

    return Student.of(teacher, terms, x, quick, None if quick else more)


def fit_part(rows: pd.DataFrame, give: Giver, quick: bool = False, groups: pd.Series | None = None,
             small: bool = True) -> Part:
    """Learn one part from its rows and judge it on groups of them that a fold had not seen."""
    from sklearn.model_selection import GroupKFold

    terms, x = give(rows)
    measured_ms = rows["latency_ms"].to_numpy()
    groups = shapes_of(rows) if groups is None else groups
    said, fold, outside = np.full(len(rows), np.nan), np.zeros(len(rows), int), np.zeros(len(rows), bool)
    kinds = codes_of(rows)
    folds = min(_QUICK_FOLDS if quick else FOLDS, groups.nunique())
    cut = GroupKFold(folds, shuffle=True, random_state=0).split(x, measured_ms, groups)
    for number, (train, test) in enumerate(cut):
        learned, limits = learn(rows.iloc[train], give, quick, small), _limits(_ranges(x.iloc[train]), list(x))
        beyond = _beyond(limits, x.iloc[test].to_numpy(float))
        said[test] = learned.predict(terms.iloc[test].to_numpy(float), x.iloc[test][learned.names].to_numpy(float), beyond)
        fold[test], outside[test] = number, beyond | ~np.isin(kinds[test], kinds[train])
    error = np.log(measured_ms / said)
    edges, halves = conformal(error, said)
    kinds_seen = [list(kind) for kind in sorted(kinds_of(rows))]
    return Part(learn(rows, give, quick, small), list(x), _ranges(x), kinds_seen, edges, halves, len(rows),
                score(measured_ms, said), unseen=_unseen(rows, said, error, fold).assign(out_of_range=outside))


def _unseen(rows: pd.DataFrame, said: np.ndarray, error: np.ndarray, fold: np.ndarray) -> pd.DataFrame:
    """Return each row's prediction by the fold that had not seen it, its interval from the errors of the other folds."""
    half = np.zeros(len(rows))
    for number in np.unique(fold):
        mine = fold == number
        edges, halves = conformal(error[~mine], said[~mine])
        half[mine] = np.array(halves)[np.searchsorted(edges, said[mine])]
    low, high = said * np.exp(-half), said * np.exp(half)
    return pd.DataFrame({"predicted_ms": said, "low_ms": low, "high_ms": high}, index=rows.index)


def _limits(ranges: Mapping[str, tuple[float, float]], names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.array([ranges.get(name, (-np.inf, np.inf)) for name in names]).reshape(-1, 2).T
    return low, high


def _beyond(limits: tuple[np.ndarray, np.ndarray], values: np.ndarray) -> np.ndarray:
    """Return whether a row of features, or each of several, lies outside of the limits."""
    return ((values < limits[0]) | (values > limits[1])).any(axis=-1)


def _ranges(x: pd.DataFrame) -> dict[str, tuple[float, float]]:
    return {column: (float(x[column].min()), float(x[column].max())) for column in x if column not in features.TEXTS}


def _shift(factor: float) -> Correction:
    """Return a correction by the same log factor everywhere."""
    return Correction([], [], [], [[]], [0.0], factor, 0.0, 1.0)


def _correct(model: CostModel, name: str, rows: pd.DataFrame) -> Part:
    """Return a part corrected by measured rows; its interval comes from rows that a fold of the correction had not seen."""
    from sklearn.model_selection import GroupKFold

    part = replace(model._part(name), correction=None)
    terms, x = given(rows, model.chip, model._part_of(name))
    base = part.middle(terms, x, part.outside(x))
    ratio = np.log(rows["latency_ms"].to_numpy() / base)
    names = [column for column in _CORRECTED if column in part.features]
    chosen, said, groups = x[names].to_numpy(float), np.full(len(rows), np.nan), shapes_of(rows)
    for train, test in GroupKFold(min(FOLDS, groups.nunique()), shuffle=True, random_state=0).split(chosen, ratio, groups):
        said[test] = Correction.of(names, chosen[train], ratio[train])(chosen[test])
    predicted = base * np.exp(said)
    edges, halves = conformal(ratio - said, predicted, bins=2)
    return replace(part, correction=Correction.of(names, chosen, ratio), edges_ms=edges, halves=halves, rows=len(rows),
                   scores=score(rows["latency_ms"].to_numpy(), predicted), origin="")
