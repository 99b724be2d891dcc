"""A training workload's step from its description alone, each workload predicted by models that never saw it.

A perceptron and boosted trees on what a description gives (parameters, FLOPs, bytes, operators, batch), as the first plan of
this project had it, against the sum of the operators with a composition learned from other networks.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.predict.networks import composition as estimate
from lib.predict.networks.composition import Work
from lib.predict.operators import cost_model
from lib.predict.operators.cost_model import CostModel

LEARNERS = ("mean", "linear in FLOPs and bytes", "boosted trees", "MLP", "sum of operators")


def description(item: Work) -> dict[str, float]:
    """Return what is known of a step without a model of its operators, as logarithms."""
    return {"flops": np.log(item.flops), "bytes": np.log(item.bytes), "intensity": np.log(item.flops / item.bytes),
            "weights": np.log(item.weight_bytes), "operators": np.log(item.modules), "batch": np.log(item.batch_size),
            "fresh": np.log(item.fresh_bytes + 1e6)}


def leave_one_out(table: pd.DataFrame, items: Mapping[tuple[str, str, int], Work], model: CostModel) -> pd.DataFrame:
    """Return measured and predicted steps of each workload by each learner: ``workload, batch_size, learner, ...``.

    ``table`` are rows of ``networks`` whose networks are workload ids, in mode train; every learner but the sum of operators
    learns from the other workloads. Learned times are logarithms of time over FLOPs.
    """
    good = (table["status"] == "ok") & (table["verdict"] != "unusable")
    rows = table[good & (table["mode"] == "train") & (table["memory"] == "kept")].reset_index(drop=True)
    works = [items[row.network, row.mode, int(row.batch_size)] for row in rows.itertuples()]
    x = pd.DataFrame([description(item) for item in works])
    measured = rows["latency_ms"].to_numpy()
    plain = pd.DataFrame({"flops": [item.flops for item in works], "bytes": [item.bytes for item in works], "step": 1.0})
    composition = estimate.Composition(**model.compositions["train kept"])
    said = {name: np.full(len(rows), np.nan) for name in LEARNERS}
    said["sum of operators"][:] = [estimate.estimate(item, model, composition).predicted_ms for item in works]
    for workload in sorted(set(rows["network"])):
        test = (rows["network"] == workload).to_numpy()
        train = ~test
        said["mean"][test] = np.exp(np.log(measured[train]).mean())
        said["linear in FLOPs and bytes"][test] = plain[test].to_numpy() @ cost_model.rates(plain[train], measured[train])
        answer = np.log(measured) - x["flops"].to_numpy()
        for name, learner in (("boosted trees", _trees), ("MLP", _mlp)):
            said[name][test] = np.exp(learner(x[train], answer[train], x[test]) + x["flops"].to_numpy()[test])
    parts = [pd.DataFrame({"workload": rows["network"], "batch_size": rows["batch_size"], "learner": name,
                           "measured_ms": measured, "predicted_ms": values,
                           "relative_error": values / measured - 1}) for name, values in said.items()]
    return pd.concat(parts, ignore_index=True)


def _trees(x: pd.DataFrame, y: np.ndarray, asked: pd.DataFrame) -> np.ndarray:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(random_state=0, loss="absolute_error", n_estimators=200).fit(x, y).predict(asked)


def _mlp(x: pd.DataFrame, y: np.ndarray, asked: pd.DataFrame) -> np.ndarray:
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(32, 32), solver="lbfgs", alpha=0.1,
                                                         max_iter=2000, random_state=0))
    return model.fit(x, y).predict(asked)


def scores(found: pd.DataFrame) -> pd.DataFrame:
    """Return a row a learner: MAPE with its interval, median, p90, within 10 %, n."""
    return pd.DataFrame([{"learner": name, **cost_model.score(part["measured_ms"].to_numpy(), part["predicted_ms"].to_numpy())}
                         for name, part in found.groupby("learner", sort=False)])
