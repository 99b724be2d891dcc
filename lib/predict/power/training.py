"""Training of power models on published kernels, scored on groups that a fold left out beside what is simpler.

Groups are (N, K) of GEMMs, and heads or shapes of attention. Whatever is chosen is chosen within the training rows of a fold,
on groups of its own. Rows of windows that are too short for the sensor train nothing and are scored apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.operators import inputs, parts, regressors
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.fitting import FOLDS, held_out
from lib.predict.operators.parts import Part
from lib.predict.operators.regressors import Boosted, Rates
from lib.predict.operators.validation import conformal, score
from lib.predict.power.kinds import ATTENTION, GEMM, Kind
from lib.predict.power.model import PowerModel, path_of
from lib.progress import track
from lib.tables import columns

DTYPE = "bf16"
WEIGHTINGS = ("equal", "relative")
_LICENCE = "Apache-2.0, ai-dynamo/aiconfigurator"
_QUICK_ROUNDS, _INNER = 60, 4
_LEAST_ROWS = 500
_FEATURES = 0.9  # of the features are seen by each tree: how long the sensor's window was depends on several at once
REPEAT = "another of equal work"
_SAME_TIME = 0.05  # of kernels of equal work, whose readings should be the same
_ON_ALL = ("constant", "default trees")  # baselines that are also trained on short windows, to be scored on them

Answer = Callable[[np.ndarray], np.ndarray]  # row numbers -> watts


def power_table(device: str, kind: Kind = GEMM) -> pd.DataFrame:
    """Return the imported table of a device's power; InputError says how to import it."""
    path = paths.IMPORTED / device / "power" / "aiconfigurator" / f"{kind.table}.parquet"
    if not path.exists():
        raise InputError(f"no {kind.table.replace('_', ' ')} of {device} was imported; run: python -m lib import "
                         "aiconfigurator FOLDER")
    return store.read(path, kind.table)


def usable(table: pd.DataFrame, chip: Chip, dtype: str = DTYPE) -> pd.DataFrame:
    """Return the measured rows of one element type, of the software that has most of them; InputError where they are few."""
    good = table[(table["status"] == "ok") & (table["dtype"] == dtype)]
    if len(good):
        good = good[good["software_id"] == good["software_id"].mode().iloc[0]]
    if (good["window"] == "long").sum() < _LEAST_ROWS:
        raise InputError(f"a power model is trained on {_LEAST_ROWS} {dtype} rows or more of long windows, there are "
                         f"{(good['window'] == 'long').sum()}")
    if "gemm_m" not in good:
        return good.reset_index(drop=True)
    m, k, n = (good[name].astype(float) for name in ("gemm_m", "gemm_k", "gemm_n"))
    return good.assign(bytes=chip.item * (m * k + k * n + m * n), layout="nt").reset_index(drop=True)


class Study:
    """One device's rows with their terms and features, and the ``grouping`` that no fold may split."""

    def __init__(self, rows: pd.DataFrame, chip: Chip, rounds: int = 0, kind: Kind = GEMM, grouping: str = "(N, K)"):
        self.rows, self.chip, self.rounds, self.kind, self.grouping = rows, chip, rounds or kind.rounds, kind, grouping
        self.terms, self.x = kind.frames(rows, chip)
        self.watts, self.long = rows["power_w"].to_numpy(float), (rows["window"] == "long").to_numpy()
        self.groups = kind.groupings[grouping](rows)
        self.work = kind.work(rows) if kind.work else pd.Series(rows.index.astype(str), index=rows.index)

    def folds(self, among: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (train, test) row numbers of ``count`` folds of some rows."""
        from sklearn.model_selection import GroupKFold

        split = GroupKFold(count, shuffle=True, random_state=0).split(among, groups=self.groups.iloc[among])
        return [(among[train], among[test]) for train, test in split]

    def boosted(self, train: np.ndarray, weighting: str) -> Boosted:
        """Train rates and trees; ``relative`` weighs a row by what the mean error in per cent makes of it, else all alike."""
        terms, watts = self.terms.iloc[train], self.watts[train]
        weight = np.ones(len(train))
        if weighting == "relative":
            weight = regressors.shares(terms.to_numpy(), regressors.nonnegative_rates(terms, watts))[0] / watts
        return Boosted.of(terms, self.x.iloc[train], watts, weight / weight.mean(), self.rounds, feature_fraction=_FEATURES)

    def part(self, train: np.ndarray, weighting: str) -> Part:
        """Train a part without intervals."""
        return Part(self.boosted(train, weighting), list(self.x), parts.ranges(self.x.iloc[train]),
                    inputs.kinds(self.rows.iloc[train]), [], [np.nan], len(train))

    def predict(self, part: Part, test: np.ndarray) -> np.ndarray:
        """Return a part's watts for some rows."""
        return part.predict(self.terms.iloc[test].to_numpy(), self.x.iloc[test].to_numpy())[0]

    def chosen(self, train: np.ndarray) -> str:
        """Return the weighting with the least mean error on an inner fold of the training rows."""
        inner, test = self.folds(train, _INNER)[0]

        def error(weighting: str) -> float:
            return float(np.abs(self.predict(self.part(inner, weighting), test) / self.watts[test] - 1).mean())

        return min(WEIGHTINGS, key=error)

    def constant(self, train: np.ndarray) -> Answer:
        """Answer with the mean of the training rows."""
        mean = self.watts[train].mean()
        return lambda test: np.full(len(test), mean)

    def utilisation(self, train: np.ndarray) -> Answer:
        """Answer with physical rates of utilisation alone."""
        rates = Rates(list(self.terms), regressors.nonnegative_rates(self.terms.iloc[train], self.watts[train]))
        return lambda test: rates.predict(self.terms.iloc[test].to_numpy(), np.zeros((len(test), 0)), np.zeros(len(test), bool))

    def trees(self, train: np.ndarray) -> Answer:
        """Answer with LightGBM as it comes, from the shape and the time; of GEMMs also from the utilisation."""
        import lightgbm

        x = self.x[list(self.kind.plain)].to_numpy(np.float32)
        fitted = lightgbm.train({"verbosity": -1, "seed": 0, "num_threads": 1},
                                lightgbm.Dataset(x[train], np.log(self.watts[train])), 100)
        return lambda test: np.exp(fitted.predict(x[test]))

    def repeat(self) -> np.ndarray:
        """Return for each row of a long window the mean watts of others of equal work and time, NaN where there is none.

        How far they are apart is what no model can know that is given shape and time alone.
        """
        answer, log_ms = np.full(len(self.rows), np.nan), np.log(self.rows["latency_ms"].to_numpy(float))
        for rows in self.work[self.long].groupby(self.work[self.long]).groups.values():
            numbers = np.asarray(rows)
            alike = np.abs(log_ms[numbers][:, None] - log_ms[numbers]) < _SAME_TIME
            np.fill_diagonal(alike, False)
            several = alike.any(axis=1)
            answer[numbers[several]] = (alike @ self.watts[numbers])[several] / alike.sum(axis=1)[several]
        return answer


@dataclass
class Outcome:
    """What learners answered for the groups that a fold left out: watts by learner, fold, weightings, rows of unseen work."""

    study: Study
    answers: dict[str, np.ndarray]
    fold: np.ndarray
    weightings: list[str]
    unseen_work: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """Give the log error of the model on long windows."""
        return np.log(self.study.watts / self.answers["this model"])[self.study.long]

    def held_out(self) -> pd.DataFrame:
        """Return the predictions of long windows with intervals from the errors of other folds."""
        own = np.flatnonzero(self.study.long)
        return held_out(self.study.rows.iloc[own], self.answers["this model"][own], self.error, self.fold[own])

    def cover(self) -> float:
        """Return how many in a hundred of the intervals of long windows hold what was measured."""
        intervals, measured = self.held_out(), self.study.watts[self.study.long]
        return float((intervals["low_ms"].le(measured) & intervals["high_ms"].ge(measured)).mean() * 100)


def evaluate(study: Study) -> Outcome:
    """Return what the model and the baselines answer for the groups that each fold leaves out."""
    learners = {"constant": study.constant, "utilisation": study.utilisation, "default trees": study.trees}
    several = (*learners, *(f"{name}, all rows" for name in _ON_ALL), "this model")
    count = len(study.rows)
    answers = {name: np.full(count, np.nan) for name in several}
    outcome = Outcome(study, answers, np.zeros(count, int), [], np.zeros(count, bool))
    for number, (train, test) in enumerate(track(study.folds(np.arange(count), FOLDS), "power")):
        own = train[study.long[train]]
        for name, learner in learners.items():
            answers[name][test] = learner(own)(test)
        for name in _ON_ALL:
            answers[f"{name}, all rows"][test] = learners[name](train)(test)
        outcome.weightings.append(study.chosen(own))
        answers["this model"][test] = study.predict(study.part(own, outcome.weightings[-1]), test)
        outcome.fold[test] = number
        outcome.unseen_work[test] = ~study.work.iloc[test].isin(study.work.iloc[own]).to_numpy()
    if study.kind.work:
        answers[REPEAT] = study.repeat()
    return outcome


def fit(device: str, rows: pd.DataFrame, chip: Chip, quick: bool = False, kind: Kind = GEMM) -> tuple[PowerModel, pd.DataFrame]:
    """Train on usable rows; return the model and its scores (table ``scores``) on unseen groups beside the baselines.

    The intervals hold for all groupings of the kind together; the model's own scores are those of the first.
    """
    rounds = _QUICK_ROUNDS if quick else kind.rounds
    outcomes = [evaluate(Study(rows, chip, rounds, kind, grouping)) for grouping in kind.groupings]
    first = outcomes[0]
    study, numbers = first.study, np.flatnonzero(first.study.long)
    part = study.part(numbers, study.chosen(numbers))
    predicted, measured = first.answers["this model"][numbers], study.watts[numbers]
    errors, sizes = (np.concatenate(values) for values in zip(*((outcome.error, outcome.answers["this model"][numbers])
                                                                for outcome in outcomes), strict=True))
    part.edges_ms, part.halves = conformal(errors, sizes)
    part.held_out = first.held_out()
    part.scores = {**score(measured, predicted), "cover": first.cover()}
    facts = {"dtype": rows["dtype"].iloc[0], "latency_type": "kernel", "cache": "warm", "hardware_id": f"published:{device}",
             "software_id": rows["software_id"].iloc[0], "source": "aiconfigurator", "licence": _LICENCE,
             "least_w": float(measured.min()), "limit_w": float(rows["limit_w"].max()), "rows": len(numbers),
             "short_windows": int((~study.long).sum()), "trained_utc": store.utc_now(),
             "weightings": [weighting for outcome in outcomes for weighting in outcome.weightings]}
    scores = pd.concat([_scores(outcome, len(outcomes) > 1) for outcome in outcomes], ignore_index=True)
    return PowerModel(device, facts, part, chip, kind), scores


def _scores(outcome: Outcome, several: bool) -> pd.DataFrame:
    """Return the scores of all learners by windows, and apart of long ones whose work no training row does."""
    study, start = outcome.study, f"unseen {outcome.study.grouping}, " if several else ""
    families = {"long windows": study.long, "short windows": ~study.long, "all windows": np.ones(len(study.long), bool)}
    if study.kind.work:
        families["long windows, unseen work"] = study.long & outcome.unseen_work
    rows: list[dict[str, Any]] = []
    for family, wanted in families.items():
        for name, values in outcome.answers.items():
            own = wanted & np.isfinite(values)
            if own.any() and (name != REPEAT or family == "long windows"):
                cover = outcome.cover() if (name, family) == ("this model", "long windows") else np.nan
                rows.append({"kind": "power", "family": start + family, "learner": name,
                             **score(study.watts[own], values[own]), "cover": cover})
    return pd.DataFrame(rows)[columns("scores")]


def ship(device: str = "h200-sxm", quick: bool = False, kind: Kind = GEMM) -> pd.DataFrame:
    """Train and ship the power model of a device from imported data, its scores beside it; return them."""
    chip = Chip.of(load_devices()[device], DTYPE)
    model, scores = fit(device, usable(power_table(device, kind), chip), chip, quick, kind)
    path = model.save(path_of(device, DTYPE, kind))
    target = store.write(scores, path.with_name(f"{device}_{DTYPE}_scores.csv"), "scores", derived=True)
    store.write_meta(target, "scores", model=path.name, rows=model.facts["rows"], short_windows=model.facts["short_windows"],
                     split=f"unseen {' and, apart, unseen '.join(kind.groupings)}, 5 folds; weightings chosen on inner folds",
                     quick=quick)
    return scores


SHIPS = {"power": ("h200-sxm", GEMM), "attention-power": ("b200", ATTENTION)}
