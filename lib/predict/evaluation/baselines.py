"""How good are the operator models? Baselines beside them on the same unseen groups, learning curves, coverage, noise floor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from lib.predict.operators import cost_model, features

FAMILIES: dict[str, tuple[tuple[str, ...], str]] = {
    "conv2d forward": (("conv2d",), "forward"), "conv2d backward": (("conv2d",), "backward"),
    "matmul and linear": (("linear", "matmul"), "forward"), "batched GEMM": (("bmm",), "forward"),
    "attention forward": (("attention",), "forward"), "attention backward": (("attention",), "backward"),
    "pooling forward": (("pool2d", "pool3d"), "forward"), "pooling backward": (("pool2d", "pool3d"), "backward"),
    "memory-bound forward": (features.GROUPS["memory"], "forward"),
    "memory-bound backward": (features.GROUPS["memory"], "backward")}
_SEED = 0


@dataclass(frozen=True)
class Baselines:
    """What every learner is given: the rows, their features, and the ideal time in ms under the device's measured roof."""

    rows: pd.DataFrame
    x: pd.DataFrame
    ideal_ms: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame, peak_gflops: float, peak_gbps: float) -> "Baselines":
        """Prepare rows of one group."""
        group = features.group_of(rows["op"].iloc[0])
        ideal = np.maximum(rows["flops"] / peak_gflops, rows["bytes"] / peak_gbps).to_numpy() / 1e6
        return cls(rows, features.matrix(rows, group), ideal)

    @property
    def measured(self) -> np.ndarray:
        """Return the measured times in ms."""
        return self.rows["latency_ms"].to_numpy()

    @property
    def work(self) -> np.ndarray:
        """Return FLOPs, bytes and one, (n, 3)."""
        return np.column_stack([self.rows["flops"], self.rows["bytes"], np.ones(len(self.rows))]).astype(float)


Learner = Callable[[Baselines, np.ndarray, np.ndarray], np.ndarray]  # (data, train, test) -> predicted ms of test


def _mean(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    return np.full(len(test), np.exp(np.log(data.measured[train]).mean()))


def _roofline(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    return np.maximum(data.ideal_ms[test], cost_model.LEAST_MS)


def _linear(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit a FLOP's, a byte's and a call's cost for each family, never negative (as Li et al., MICRO 2023)."""
    ops, said = data.rows["op"].to_numpy(), np.full(len(test), np.nan)
    for op in np.unique(ops):
        mine, asked = train[ops[train] == op], ops[test] == op
        mine = mine if len(mine) > 3 else train
        costs = cost_model.rates(pd.DataFrame(data.work[mine]), data.measured[mine])
        said[asked] = data.work[test[asked]] @ costs
    return np.maximum(said, cost_model.LEAST_MS)


def _lasso(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit a sparse polynomial of degree 2 (Cai et al., NeuralPower, 2017), here of logarithms, of the log time."""
    from sklearn.linear_model import LassoCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    chosen = data.x.loc[:, data.x.iloc[train].std() > 0].iloc[:, :14]
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler(),
                          LassoCV(cv=3, alphas=20, max_iter=2000, tol=1e-3, random_state=_SEED))
    model.fit(chosen.iloc[train], np.log(data.measured[train]))
    low, high = np.log(data.measured[train].min()), np.log(data.measured[train].max())
    return np.exp(np.clip(model.predict(chosen.iloc[test]), low - 2, high + 2))


def _trees(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit LightGBM as it comes to the log of measured over ideal time."""
    import lightgbm

    ideal = np.maximum(data.ideal_ms, cost_model.LEAST_MS)
    fitted = lightgbm.train({"verbosity": -1, "seed": _SEED, "num_threads": 2}, lightgbm.Dataset(
        data.x.iloc[train], np.log(data.measured[train] / ideal[train])), 100)
    return ideal[test] * np.exp(fitted.predict(data.x.iloc[test]))


def _mlp(data: Baselines, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit scikit-learn's perceptron (two layers of 64) to the log of measured over ideal time."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ideal = np.maximum(data.ideal_ms, cost_model.LEAST_MS)
    model = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(64, 64), early_stopping=True, max_iter=300,
                                                         random_state=_SEED))
    model.fit(data.x.iloc[train], np.log(data.measured[train] / ideal[train]))
    return ideal[test] * np.exp(np.clip(model.predict(data.x.iloc[test]), -3, 6))


BASELINES: Mapping[str, Learner] = {"mean": _mean, "roofline": _roofline, "linear per operator": _linear,
                                    "Lasso polynomial": _lasso, "boosted trees": _trees, "MLP": _mlp}


def compare(table: pd.DataFrame, peak_gflops: float, peak_gbps: float, model: cost_model.CostModel,
            folds: int = cost_model.FOLDS, families: Mapping[str, tuple[tuple[str, ...], str]] = FAMILIES,
            baselines: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the learners on shapes that a fold had not seen; return their scores and the predictions of ``model``.

    ``model`` was just fitted on ``table``, a usable sweep, and remembers what its folds said. Scores: ``family, learner``, what
    ``costmodel.score`` gives, and the interval's ``cover``. Predictions: the rows of ``table`` with ``family, predicted_ms,
    low_ms, high_ms, predicted_gbps, relative_error, out_of_range``.
    """
    from sklearn.model_selection import GroupKFold

    scores, predictions = [], []
    said = pd.concat([part.unseen for part in model.parts.values()])
    for family, (ops, passes) in families.items():
        rows = table[table["op"].isin(ops) & (table["pass"] == passes) & table.index.isin(said.index)]
        if len(rows) < cost_model.LEAST_ROWS:
            continue
        ours = rows.drop(columns=["low_ms", "high_ms"]).join(said).assign(family=family)
        ours["relative_error"] = ours["predicted_ms"] / ours["latency_ms"] - 1
        ours["predicted_gbps"] = ours["bytes"] / ours["predicted_ms"] / 1e6
        measured = rows["latency_ms"].to_numpy()
        inside = ours["latency_ms"].between(ours["low_ms"], ours["high_ms"])
        data = Baselines.of(rows.reset_index(drop=True), peak_gflops, peak_gbps)
        cut = list(GroupKFold(folds, shuffle=True, random_state=_SEED).split(rows, groups=cost_model.shapes_of(rows)))
        for name, learner in BASELINES.items() if baselines else ():
            told = np.full(len(rows), np.nan)
            for train, test in cut:
                told[test] = learner(data, train, test)
            scores.append({"family": family, "learner": name, **cost_model.score(measured, told)})
        scores.append({"family": family, "learner": "this model", "cover": float(inside.mean() * 100),
                       **cost_model.score(measured, ours["predicted_ms"].to_numpy())})
        predictions.append(ours)
    return pd.DataFrame(scores), pd.concat(predictions, ignore_index=True)


def learning_curve(rows: pd.DataFrame, counts: tuple[int, ...], folds: int = 5, quick: bool = False) -> pd.DataFrame:
    """Return the error on unseen shapes against the number of measured points: ``points, mape, median, n``."""
    from sklearn.model_selection import GroupKFold

    draw, found = np.random.default_rng(_SEED), []
    train, test = next(GroupKFold(folds, shuffle=True, random_state=_SEED).split(rows, groups=cost_model.shapes_of(rows)))
    order = draw.permutation(train)
    for count in sorted({min(count, len(train)) for count in counts}):
        said = _said(rows, order[:count], test, quick)
        found.append({"points": count, **cost_model.score(rows["latency_ms"].to_numpy()[test], said)})
    return pd.DataFrame(found)


def _said(rows: pd.DataFrame, train: np.ndarray, test: np.ndarray, quick: bool) -> np.ndarray:
    give = partial(cost_model.given, chip=None)
    terms, x = give(rows.iloc[test])
    return cost_model.learn(rows.iloc[train], give, quick).predict(terms.to_numpy(float), x.to_numpy(float))


def by_size(predictions: pd.DataFrame, bins: int = 6) -> pd.DataFrame:
    """Return the median and p90 error by measured time: ``family, from_ms, to_ms, median, p90, n``."""
    rows = []
    for family, part in predictions.groupby("family", sort=False):
        edges = np.quantile(part["latency_ms"], np.linspace(0, 1, bins + 1))
        place = np.clip(np.searchsorted(edges, part["latency_ms"], side="right") - 1, 0, bins - 1)
        for number in range(bins):
            error = part["relative_error"].abs().to_numpy()[place == number] * 100
            if len(error):
                rows.append({"family": family, "from_ms": edges[number], "to_ms": edges[number + 1],
                             "median": float(np.median(error)), "p90": float(np.percentile(error, 90)), "n": len(error)})
    return pd.DataFrame(rows)


def effects(model: cost_model.CostModel, rows: pd.DataFrame, seed: int = _SEED) -> pd.DataFrame:
    """Return by how many points the MAPE on ``rows`` grows when a feature is shuffled: ``feature, added_mape``, the most first.

    Of rows of one part; what the model has learned from them makes the level of the error too low, not the order.
    """
    (name, part), = cost_model.by_part(rows, model.chip is not None)
    terms, x = (frame.to_numpy(float) for frame in cost_model.given(part, model.chip))
    learned, measured = model.parts[name].learned, part["latency_ms"].to_numpy()
    level = np.abs(learned.predict(terms, x) / measured - 1).mean()
    draw, found = np.random.default_rng(seed), []
    for place, feature in enumerate(learned.names):
        shuffled = x.copy()
        shuffled[:, place] = draw.permutation(shuffled[:, place])
        error = np.abs(learned.predict(terms, shuffled) / measured - 1).mean()
        found.append({"feature": feature, "added_mape": float(error - level) * 100})
    return pd.DataFrame(found).sort_values("added_mape", ascending=False, ignore_index=True)
