"""Training of the power model of GEMMs on published kernels, scored on (N, K) that a fold left out beside simpler learners.

Weightings are chosen within the training rows of a fold, on groups of their own. Rows of windows that are too short for the
sensor train nothing and are scored apart.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.operators import inputs, parts, regressors
from lib.predict.operators.chip import Chip
from lib.predict.operators.fitting import held_out
from lib.predict.operators.parts import Part
from lib.predict.operators.regressors import Boosted
from lib.predict.operators.validation import FOLDS, conformal, folds
from lib.predict.power.features import frames
from lib.predict.power.model import PowerModel, path_of
from lib.predict.scores import score
from lib.progress import track
from lib.tables import columns

DTYPE, DEVICE = "bf16", "h200-sxm"
WEIGHTINGS = ("equal", "relative")
_LICENCE = "Apache-2.0, ai-dynamo/aiconfigurator"
_ROUNDS, _QUICK_ROUNDS, _INNER = 500, 60, 4
_LEAST_ROWS = 500
_FEATURES = 0.9  # of the features are seen by each tree: how long the sensor's window was depends on several at once
_PLAIN = ["m", "n", "k", "latency", "compute_used", "memory_used"]  # features of default trees
_MODEL, _LONG = "this model", "long windows"

Answer = Callable[[np.ndarray], np.ndarray]  # row numbers -> watts


def power_table(device: str) -> pd.DataFrame:
    """Return the imported table of a device's power; InputError says how to import it."""
    path = paths.IMPORTED / device / "power" / "aiconfigurator" / "power.parquet"
    if not path.exists():
        raise InputError(f"no power of {device} was imported; run: python -m lib import aiconfigurator FOLDER")
    return store.read(path, "power")


def usable(table: pd.DataFrame, chip: Chip) -> pd.DataFrame:
    """Return the measured rows of one element type, of the software that has most of them; InputError where they are few."""
    good = table[(table["status"] == "ok") & (table["dtype"] == DTYPE)]
    if len(good):
        good = good[good["software_id"] == good["software_id"].mode().iloc[0]]
    count = (good["window"] == "long").sum()
    if count < _LEAST_ROWS:
        raise InputError(f"a power model is trained on {_LEAST_ROWS} {DTYPE} rows or more of long windows, there are {count}")
    m, k, n = (good[name].astype(float) for name in ("gemm_m", "gemm_k", "gemm_n"))
    return good.assign(bytes=chip.item * (m * k + k * n + m * n), layout="nt").reset_index(drop=True)


class Study:
    """One device's rows with their terms and features, and the groups (N, K) that no fold may split."""

    def __init__(self, rows: pd.DataFrame, chip: Chip, rounds: int = _ROUNDS):
        self.rows, self.rounds = rows, rounds
        self.terms, self.x = frames(rows, chip)
        self.watts, self.long = rows["power_w"].to_numpy(float), (rows["window"] == "long").to_numpy()
        self.groups = rows[["gemm_n", "gemm_k"]].astype(str).agg("x".join, axis=1)

    def folds(self, among: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (train, test) row numbers of ``count`` folds of some rows."""
        return [(among[train], among[test]) for train, test in folds(self.groups.iloc[among], count)]

    def part(self, train: np.ndarray, weighting: str) -> Part:
        """Train rates and trees; ``relative`` weighs a row by what the mean error in per cent makes of it, else all alike."""
        terms, x, watts = self.terms.iloc[train], self.x.iloc[train], self.watts[train]
        weight = np.ones(len(train))
        if weighting == "relative":
            weight = regressors.shares(terms.to_numpy(), regressors.nonnegative_rates(terms, watts))[0] / watts
        regressor = Boosted.fit(terms, x, watts, weight / weight.mean(), self.rounds, feature_fraction=_FEATURES)
        return Part(regressor, list(x), parts.ranges(x), inputs.kinds(self.rows.iloc[train]), [], [np.nan], len(train))

    def predict(self, part: Part, test: np.ndarray) -> np.ndarray:
        """Return a part's watts for some rows."""
        return part.predict(self.terms.iloc[test].to_numpy(), self.x.iloc[test].to_numpy())[0]

    def weighting(self, train: np.ndarray) -> str:
        """Return the weighting with the least mean error on an inner fold of the training rows."""
        inner, test = self.folds(train, _INNER)[0]
        return min(WEIGHTINGS, key=lambda weighting: float(
            np.abs(self.predict(self.part(inner, weighting), test) / self.watts[test] - 1).mean()))

    def constant(self, train: np.ndarray) -> Answer:
        """Answer with the mean of the training rows."""
        mean = self.watts[train].mean()
        return lambda test: np.full(len(test), mean)

    def utilisation(self, train: np.ndarray) -> Answer:
        """Answer with physical rates of utilisation alone."""
        rates = regressors.nonnegative_rates(self.terms.iloc[train], self.watts[train])
        return lambda test: regressors.shares(self.terms.iloc[test].to_numpy(), rates)[0]

    def trees(self, train: np.ndarray) -> Answer:
        """Answer with LightGBM as it comes, from shape, time and utilisation."""
        import lightgbm

        x = self.x[_PLAIN].to_numpy(np.float32)
        fitted = lightgbm.train({"verbosity": -1, "seed": 0, "num_threads": 1},
                                lightgbm.Dataset(x[train], np.log(self.watts[train])), 100)
        return lambda test: np.exp(fitted.predict(x[test]))


def fit(device: str, rows: pd.DataFrame, chip: Chip, quick: bool = False) -> tuple[PowerModel, pd.DataFrame]:
    """Train on usable rows; return the model and its scores (table ``scores``) on unseen (N, K) beside the baselines."""
    study = Study(rows, chip, _QUICK_ROUNDS if quick else _ROUNDS)
    baselines = {"constant": study.constant, "utilisation": study.utilisation, "default trees": study.trees}
    on_all = {f"{name}, all rows": baselines[name] for name in ("constant", "default trees")}  # short windows train them, too
    answers = {name: np.full(len(rows), np.nan) for name in (*baselines, *on_all, _MODEL)}
    fold, weightings = np.zeros(len(rows), int), []
    for number, (train, test) in enumerate(track(study.folds(np.arange(len(rows)), FOLDS), "power")):
        long = train[study.long[train]]
        weightings.append(study.weighting(long))
        for name, learner in (baselines | on_all).items():
            answers[name][test] = learner(train if name in on_all else long)(test)
        answers[_MODEL][test] = study.predict(study.part(long, weightings[-1]), test)
        fold[test] = number
    numbers = np.flatnonzero(study.long)
    predicted, measured = answers[_MODEL][numbers], study.watts[numbers]
    error = np.log(measured / predicted)
    part = study.part(numbers, study.weighting(numbers))
    part.edges_ms, part.halves = conformal(error, predicted)
    part.held_out = held_out(rows.iloc[numbers], predicted, error, fold[numbers])
    cover = float((part.held_out["low_ms"].le(measured) & part.held_out["high_ms"].ge(measured)).mean() * 100)
    part.scores = {**score(measured, predicted), "cover": cover}
    facts = {"dtype": rows["dtype"].iloc[0], "latency_type": "kernel", "cache": "warm", "hardware_id": f"published:{device}",
             "software_id": rows["software_id"].iloc[0], "source": "aiconfigurator", "licence": _LICENCE,
             "least_w": float(measured.min()), "limit_w": float(rows["limit_w"].max()), "rows": len(numbers),
             "short_windows": int((~study.long).sum()), "trained_utc": store.utc_now(), "weightings": weightings}
    return PowerModel(device, facts, part, chip), _scores(study, answers, cover)


def _scores(study: Study, answers: dict[str, np.ndarray], cover: float) -> pd.DataFrame:
    """Return the scores of all learners by windows; ``cover`` is that of the model's intervals on long ones."""
    windows = {_LONG: study.long, "short windows": ~study.long, "all windows": np.ones(len(study.long), bool)}
    rows = [{"kind": "power", "family": family, "learner": name, **score(study.watts[chosen], watts[chosen]),
             "cover": cover if (name, family) == (_MODEL, _LONG) else np.nan}
            for family, chosen in windows.items() if chosen.any() for name, watts in answers.items()]
    return pd.DataFrame(rows)[columns("scores")]


def ship(device: str = DEVICE, quick: bool = False) -> pd.DataFrame:
    """Train and ship the power model of a device from imported data, its scores beside it; return them."""
    chip = Chip.of(load_devices()[device], DTYPE)
    model, scores = fit(device, usable(power_table(device), chip), chip, quick)
    path = model.save(path_of(device, DTYPE))
    target = store.write(scores, path.with_name(f"{device}_{DTYPE}_scores.csv"), "scores", derived=True)
    store.write_meta(target, "scores", model=path.name, rows=model.facts["rows"], short_windows=model.facts["short_windows"],
                     split="unseen (N, K), 5 folds; weightings chosen on inner folds", quick=quick)
    return scores
