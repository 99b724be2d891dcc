"""Forward and backward of a workload from its description alone, each predicted by models that were trained without it.

Whole steps, with loader, copy and optimizer, are those of ``profiled_steps``. A perceptron and boosted trees on what a
description gives (parameters, FLOPs, bytes, operators, batch), as the first plan of this project had it, against the sum of the
operators with a composition fitted to other networks.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.measure.statistics import VERDICTS
from lib.predict.networks import composition
from lib.predict.networks.composition import Composition
from lib.predict.networks.step_learners import frames
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.regressors import nonnegative_rates
from lib.predict.scores import score_by

_LEAST_WORKLOADS = 3
LEARNERS = ("mean", "linear in FLOPs and bytes", "boosted trees", "MLP", "sum of operators")


def retained(networks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of processes that retain their heap; all rows where there is none: on a GPU heaps are no condition."""
    kept = networks[networks["memory"] == "kept"]
    return kept if len(kept) else networks


def leave_one_out(table: pd.DataFrame, items: Mapping[tuple[str, str, int], Work], model: CostModel) -> pd.DataFrame:
    """Return forward and backward of each workload, measured and predicted by each learner.

    ``table`` are rows of ``networks`` whose networks are workload ids, in mode train; every learner but the sum of operators
    is trained on the other workloads. Trained on are logarithms of time over FLOPs. There are none where the model has no
    composition of steps, or fewer than three workloads were measured.
    """
    good = (table["status"] == "ok") & (table["verdict"] != VERDICTS[-1])
    rows = retained(table[good & (table["mode"] == "train")]).reset_index(drop=True)
    if "train kept" not in model.compositions or rows["network"].nunique() < _LEAST_WORKLOADS:
        return pd.DataFrame(columns=["workload", "batch_size", "learner", "measured_ms", "predicted_ms", "relative_error"])
    works = [items[row.network, row.mode, int(row.batch_size)] for row in rows.itertuples()]
    _, x = frames(works)
    measured = rows["latency_ms"].to_numpy()
    plain = pd.DataFrame({"flops": [item.flops for item in works], "bytes": [item.bytes for item in works], "step": 1.0})
    fitted = Composition(**model.compositions["train kept"])
    predicted = {name: np.full(len(rows), np.nan) for name in LEARNERS}
    predicted["sum of operators"][:] = [composition.estimate(item, model, fitted).predicted_ms for item in works]
    for workload in sorted(set(rows["network"])):
        test = (rows["network"] == workload).to_numpy()
        for name, values in _without(x, plain, measured, test).items():
            predicted[name][test] = values
    parts = [pd.DataFrame({"workload": rows["network"], "batch_size": rows["batch_size"], "learner": name,
                           "measured_ms": measured, "predicted_ms": values,
                           "relative_error": values / measured - 1}) for name, values in predicted.items()]
    return pd.concat(parts, ignore_index=True)


def _without(x: pd.DataFrame, plain: pd.DataFrame, measured: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the learners that are trained on the other steps predict of the steps ``test``."""
    train, flops = ~test, x["flops"].to_numpy()
    answer = np.log(measured) - flops
    regressed = {name: np.exp(learner(x[train], answer[train], x[test]) + flops[test])
                 for name, learner in (("boosted trees", _trees), ("MLP", _mlp))}
    return {"mean": np.full(test.sum(), np.exp(np.log(measured[train]).mean())), **regressed,
            "linear in FLOPs and bytes": plain[test].to_numpy() @ nonnegative_rates(plain[train], measured[train])}


def _trees(x: pd.DataFrame, y: np.ndarray, test: pd.DataFrame) -> np.ndarray:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(random_state=0, loss="absolute_error", n_estimators=200).fit(x, y).predict(test)


def _mlp(x: pd.DataFrame, y: np.ndarray, test: pd.DataFrame) -> np.ndarray:
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(32, 32), solver="lbfgs", alpha=0.1,
                                                         max_iter=2000, random_state=0))
    return model.fit(x, y).predict(test)


def scores(steps: pd.DataFrame) -> pd.DataFrame:
    """Return a row a learner: MAPE with its interval, median, p90, within 10 %, n."""
    return score_by(steps, ["learner"], "measured_ms", "_ms")
