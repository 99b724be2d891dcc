"""Training of the power model of GEMMs on published kernels, scored on (N, K) that a fold left out beside simpler learners.

Weightings are chosen within the training rows of a fold, on groups of their own. Rows of windows that are too short for the
sensor train nothing and are scored apart.
"""

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.learners.trees import default_trees
from lib.predict.operators import regressors
from lib.predict.operators.chip import Chip
from lib.predict.operators.fitting import validated
from lib.predict.operators.parts import Part
from lib.predict.operators.validation import FOLDS, folds
from lib.predict.power.model import PART, PowerModel, frames, path_of
from lib.predict.scores import score
from lib.progress import track
from lib.tables import columns

DTYPE, DEVICE = "bf16", "h200-sxm"
WEIGHTINGS = ("equal", "relative")
_LICENCE = "Apache-2.0, ai-dynamo/aiconfigurator"
_ROUNDS, _QUICK_ROUNDS, _INNER = 500, 60, 4
_LEAST_ROWS = 500
_FEATURES = 0.9  # of the features are seen by each tree: how long the sensor's window was depends on several at once
_PLAIN = "m n k latency compute_used memory_used".split()  # features of default trees
_MODEL, _ALL = "this model", ", all rows"  # _ALL: a learner that short windows train, too


def power_table(device: str) -> pd.DataFrame:
    """Return the imported table of a device's power; InputError says how to import it."""
    path = paths.IMPORTED / device / "power" / "aiconfigurator" / "power.parquet"
    if not path.exists():
        raise InputError(f"no power of {device} was imported; run: python -m lib import aiconfigurator FOLDER")
    return store.read(path, "power")


def usable(table: pd.DataFrame, chip: Chip) -> pd.DataFrame:
    """Return the measured rows of one element type, of the software that has most of them; InputError where they are few."""
    good = table[(table["status"] == "ok") & (table["dtype"] == DTYPE)]
    good = good[good["software_id"].isin(good["software_id"].mode()[:1])]
    count = (good["window"] == "long").sum()
    if count < _LEAST_ROWS:
        raise InputError(f"a power model is trained on {_LEAST_ROWS} {DTYPE} rows or more of long windows, there are {count}")
    m, k, n = (good[name].astype(float) for name in ("gemm_m", "gemm_k", "gemm_n"))
    return good.assign(bytes=chip.item * (m * k + k * n + m * n), layout="nt").reset_index(drop=True)


class Study:
    """One device's rows with their terms and features, and the groups (N, K) that no fold may split.

    A learner answers in watts for the row numbers ``test`` after it was trained on ``train``.
    """

    def __init__(self, rows: pd.DataFrame, chip: Chip, rounds: int = _ROUNDS):
        self.rows, self.rounds = rows, rounds
        self.terms, self.x = frames(rows, chip)
        self.watts, self.long = rows["power_w"].to_numpy(float), (rows["window"] == "long").to_numpy()
        self.groups = rows[["gemm_n", "gemm_k"]].astype(str).agg("x".join, axis=1)

    def folds(self, among: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (train, test) row numbers of ``count`` folds of some rows."""
        return [(among[train], among[test]) for train, test in folds(self.groups.iloc[among], count)]

    def part(self, train: np.ndarray, weighting: str) -> Part:
        """Train rates and trees; ``relative`` weighs each row so that the error in per cent counts, ``equal`` all alike."""
        weight = self.utilisation(train, train) / self.watts[train] if weighting == "relative" else np.ones(len(train))
        x = self.x.iloc[train]
        return Part.trained(regressors.Boosted.fit(self.terms.iloc[train], x, self.watts[train], weight / weight.mean(),
                                                   self.rounds, feature_fraction=_FEATURES), self.rows.iloc[train], x)

    def weighting(self, train: np.ndarray) -> str:
        """Return the weighting with the least mean error on an inner fold of the training rows."""
        inner, test = self.folds(train, _INNER)[0]
        return min(WEIGHTINGS, key=lambda weighting: float(
            np.abs(self.answer(self.part(inner, weighting), test) / self.watts[test] - 1).mean()))

    def answer(self, part: Part, test: np.ndarray) -> np.ndarray:
        """Return a part's watts for some rows."""
        return part.predict(self.terms.iloc[test], self.x.iloc[test])[0]

    def model(self, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Answer with the model, its weighting chosen within the training rows."""
        return self.answer(self.part(train, self.weighting(train)), test)

    def constant(self, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Answer with the mean of the training rows."""
        return np.full(len(test), self.watts[train].mean())

    def utilisation(self, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Answer with physical rates of utilisation alone."""
        rates = regressors.nonnegative_rates(self.terms.iloc[train], self.watts[train])
        return regressors.shares(self.terms.iloc[test].to_numpy(), rates)[0]

    def trees(self, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Answer with LightGBM as it comes, from shape, time and utilisation."""
        x = self.x[_PLAIN].to_numpy(np.float32)
        return default_trees(x[train], self.watts[train], x[test])


def fit(device: str, rows: pd.DataFrame, chip: Chip, quick: bool = False) -> tuple[PowerModel, pd.DataFrame]:
    """Train on usable rows; return the model and its scores (table ``scores``) on unseen (N, K) beside the baselines."""
    study = Study(rows, chip, _QUICK_ROUNDS if quick else _ROUNDS)
    learners = {"constant": study.constant, "utilisation": study.utilisation, "default trees": study.trees,
                f"constant{_ALL}": study.constant, f"default trees{_ALL}": study.trees, _MODEL: study.model}
    answers = {name: np.full(len(rows), np.nan) for name in learners}
    fold = np.zeros(len(rows), int)
    for number, (train, test) in enumerate(track(study.folds(np.arange(len(rows)), FOLDS), "power")):
        fold[test] = number
        for name, learner in learners.items():
            answers[name][test] = learner(train if name.endswith(_ALL) else train[study.long[train]], test)
    long = np.flatnonzero(study.long)
    measured = study.watts[long]
    part = validated(study.part(long, study.weighting(long)), rows.iloc[long], measured, answers[_MODEL][long], fold[long])
    part.scores = score(measured, *(part.held_out[name] for name in ("predicted_ms", "low_ms", "high_ms")))
    facts = {"dtype": rows["dtype"].iloc[0], "latency_type": "kernel", "cache": "warm", "hardware_id": f"published:{device}",
             "software_id": rows["software_id"].iloc[0], "source": "aiconfigurator", "licence": _LICENCE,
             "least_w": float(measured.min()), "limit_w": float(rows["limit_w"].max()), "rows": len(long),
             "short_windows": int((~study.long).sum()), "trained_utc": store.utc_now()}
    windows = {"long windows": study.long, "short windows": ~study.long, "all windows": study.long | True}
    scores = [{"kind": "power", "family": family, "learner": name, **score(study.watts[chosen], watts[chosen]),
               **(part.scores if chosen is study.long and name == _MODEL else {})}
              for family, chosen in windows.items() if chosen.any() for name, watts in answers.items()]
    return PowerModel(device, facts, {PART: part}, chip), pd.DataFrame(scores)[columns("scores")]


def ship(quick: bool = False) -> pd.DataFrame:
    """Train and ship the power model of DEVICE from imported data, its scores beside it; return them."""
    chip = Chip.of(load_devices()[DEVICE], DTYPE)
    model, scores = fit(DEVICE, usable(power_table(DEVICE), chip), chip, quick)
    path = model.save(path_of(DEVICE, DTYPE))
    target = store.write(scores, path.with_name(f"{DEVICE}_{DTYPE}_scores.csv"), "scores", derived=True)
    store.write_meta(target, "scores", model=path.name, rows=model.facts["rows"], short_windows=model.facts["short_windows"],
                     split="unseen (N, K), 5 folds; weightings chosen on inner folds", quick=quick)
    return scores
