"""Training of power models on published GEMM kernels, scored on (N, K) that a fold left out beside what is simpler.

Whatever is chosen is chosen within the training rows of a fold, on (N, K) of its own. Rows of windows that are too short for
the sensor train nothing and are scored apart.
"""

from collections.abc import Callable
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
from lib.predict.power.features import frames
from lib.predict.power.model import SHIPPED, PowerModel, path_of
from lib.progress import track
from lib.tables import columns

DTYPE = "bf16"
WEIGHTINGS = ("equal", "relative")
_LICENCE = "Apache-2.0, ai-dynamo/aiconfigurator"
_ROUNDS, _QUICK_ROUNDS, _INNER = 500, 60, 4
_LEAST_ROWS = 500
_FEATURES = 0.9  # of the features are seen by each tree: how long the sensor's window was depends on several at once
_ON_ALL = ("constant", "default trees")  # baselines that are also trained on short windows, to be scored on them

Answer = Callable[[np.ndarray], np.ndarray]  # row numbers -> watts


def power_table(device: str) -> pd.DataFrame:
    """Return the imported ``power`` table of a device; InputError says how to import it."""
    path = paths.IMPORTED / device / "power" / "aiconfigurator" / "power.parquet"
    if not path.exists():
        raise InputError(f"no power of {device} was imported; run: python -m lib import aiconfigurator FOLDER")
    return store.read(path, "power")


def usable(table: pd.DataFrame, chip: Chip, dtype: str = DTYPE) -> pd.DataFrame:
    """Return the measured rows of one element type, of the software that has most of them; InputError where they are few."""
    good = table[(table["status"] == "ok") & (table["dtype"] == dtype)]
    if len(good):
        good = good[good["software_id"] == good["software_id"].mode().iloc[0]]
    if (good["window"] == "long").sum() < _LEAST_ROWS:
        raise InputError(f"a power model is trained on {_LEAST_ROWS} {dtype} rows or more of long windows, there are "
                         f"{(good['window'] == 'long').sum()}")
    m, k, n = (good[name].astype(float) for name in ("gemm_m", "gemm_k", "gemm_n"))
    return good.assign(bytes=chip.item * (m * k + k * n + m * n), layout="nt").reset_index(drop=True)


class Study:
    """One device's rows with their terms and features; answers which (N, K) no fold may split."""

    def __init__(self, rows: pd.DataFrame, chip: Chip, rounds: int = _ROUNDS):
        self.rows, self.chip, self.rounds = rows, chip, rounds
        self.terms, self.x = frames(rows, chip)
        self.watts, self.long = rows["power_w"].to_numpy(float), (rows["window"] == "long").to_numpy()
        self.groups = rows["gemm_n"].astype(str) + "x" + rows["gemm_k"].astype(str)

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
        """Answer with LightGBM as it comes, from the shape, the time and the utilisation."""
        import lightgbm

        x = self.x[["m", "n", "k", "latency", "compute_used", "memory_used"]].to_numpy(np.float32)
        fitted = lightgbm.train({"verbosity": -1, "seed": 0, "num_threads": 1},
                                lightgbm.Dataset(x[train], np.log(self.watts[train])), 100)
        return lambda test: np.exp(fitted.predict(x[test]))


def fit(device: str, rows: pd.DataFrame, chip: Chip, quick: bool = False) -> tuple[PowerModel, pd.DataFrame]:
    """Train on usable rows; return the model and its scores (table ``scores``) on unseen (N, K) beside the baselines."""
    study = Study(rows, chip, _QUICK_ROUNDS if quick else _ROUNDS)
    every, numbers = np.arange(len(rows)), np.flatnonzero(study.long)
    learners = {"constant": study.constant, "utilisation": study.utilisation, "default trees": study.trees}
    several = (*learners, *(f"{name}, all rows" for name in _ON_ALL), "this model")
    answers = {name: np.full(len(rows), np.nan) for name in several}
    fold, choices_ = np.zeros(len(rows), int), []
    for number, (train, test) in enumerate(track(study.folds(every, FOLDS), "power")):
        own = train[study.long[train]]
        for name, learner in learners.items():
            answers[name][test] = learner(own)(test)
        for name in _ON_ALL:
            answers[f"{name}, all rows"][test] = learners[name](train)(test)
        choices_.append(study.chosen(own))
        answers["this model"][test] = study.predict(study.part(own, choices_[-1]), test)
        fold[test] = number
    part = study.part(numbers, study.chosen(numbers))
    predicted, measured = answers["this model"][numbers], study.watts[numbers]
    error = np.log(measured / predicted)
    part.edges_ms, part.halves = conformal(error, predicted)
    part.held_out = held_out(rows.iloc[numbers], predicted, error, fold[numbers])
    inside = part.held_out["low_ms"].le(measured) & part.held_out["high_ms"].ge(measured)
    part.scores = {**score(measured, predicted), "cover": float(inside.mean() * 100)}
    facts = {"dtype": rows["dtype"].iloc[0], "latency_type": "kernel", "cache": "warm", "hardware_id": f"published:{device}",
             "software_id": rows["software_id"].iloc[0], "source": "aiconfigurator", "licence": _LICENCE,
             "least_w": float(measured.min()), "limit_w": float(rows["limit_w"].max()), "rows": len(numbers),
             "short_windows": int((~study.long).sum()), "weightings": choices_, "trained_utc": store.utc_now()}
    return PowerModel(device, facts, part, chip), _scores(study, answers, part.scores["cover"])


def _scores(study: Study, answers: dict[str, np.ndarray], cover: float) -> pd.DataFrame:
    families = {"long windows": study.long, "short windows": ~study.long, "all windows": np.ones(len(study.long), bool)}
    rows: list[dict[str, Any]] = []
    for family, own in families.items():
        rows += [{"kind": "power", "family": family, "learner": name, **score(study.watts[own], values[own]),
                  "cover": cover if (name, family) == ("this model", "long windows") else np.nan}
                 for name, values in answers.items() if own.any()]
    return pd.DataFrame(rows)[columns("scores")]


def ship(device: str = "h200-sxm", quick: bool = False) -> pd.DataFrame:
    """Train and ship the power model of a device from imported data, its scores beside it; return them."""
    chip = Chip.of(load_devices()[device], DTYPE)
    model, scores = fit(device, usable(power_table(device), chip), chip, quick)
    path = model.save(path_of(device, DTYPE))
    target = store.write(scores, SHIPPED / f"{device}_{DTYPE}_scores.csv", "scores", derived=True)
    store.write_meta(target, "scores", model=path.name, rows=model.facts["rows"], short_windows=model.facts["short_windows"],
                     split="unseen (N, K), 5 folds; weightings chosen on inner folds", quick=quick)
    return scores
