"""Whole networks as sums of operators, with the efficiency of each kind of operator and the cost of first-touch page faults.

Both are learned from networks that were measured end to end (``fitting``).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from lib.predict.networks.work import Work, key_of
from lib.predict.operators.cost_model import Composition, CostModel

TERMS = ("sum_ms", "moved_ms", "fresh_mb")
COMPUTING = ("conv", "conv_1x1", "conv_grouped", "conv_depthwise", "gemm", "attention")  # kinds of operators
OPERATOR_KINDS = (*COMPUTING, "pool", "batch_norm", "layer_norm", "elements", "copies")
TIME_TERMS = (*(f"{kind}_ms" for kind in OPERATOR_KINDS), "fresh_mb")
_KIND = {"linear": "gemm", "matmul": "gemm", "bmm": "attention", "attention": "attention", "pool2d": "pool", "pool3d": "pool",
         "batch_norm": "batch_norm", "layer_norm": "layer_norm", "softmax": "layer_norm", "activation": "elements",
         "elementwise": "elements"}  # by family; all other families copy or reduce
_LEAST_KERNEL = 0.1  # share of a call's time, launch included, that its kernel takes at least
ZEROING, _ZEROED = "zeroing", 4  # kind: gradients are set to 0 and then added to, as in older loops; moves of an element
_BY_BYTES = "its kernels of another element type, by bytes"
Terms = Mapping[str, float]


PLAIN_SUM = Composition({"sum_ms": 1.0, "moved_ms": 1.0, "fresh_mb": 0.0}, math.nan, 0)


@dataclass(frozen=True)
class Provenance:
    """Where the time of a pass comes from.

    ``gpu``: on a GPU, the prediction (``gpu.model.Prediction``). ``gain``: on a CPU, the gain over fp32 in the
    default layout that was applied. ``runtime``: on a CPU, the answer for another runtime. Without these three, the time is a
    sum of operators. ``call``: what a call costs beside them, in words. ``origins``: shares of the time that measurements of
    other devices answered, by device.
    """

    origins: Mapping[str, float] = field(default_factory=dict)
    gpu: Any = None
    gain: Any = None
    runtime: Any = None
    call: str = ""

    @property
    def of_networks(self) -> bool:
        """Return whether the time was learned from whole networks that ran so."""
        return any(source is not None for source in (self.gpu, self.gain, self.runtime))

    @property
    def borrowed(self) -> float:
        """Return the share of the time that measurements of other devices answered."""
        return sum(self.origins.values())


class Times:
    """Base of predictions in ms."""

    @property
    def times(self) -> dict[str, float]:
        """Return predicted, low and high ms by their names."""
        return {name: getattr(self, name) for name in ("predicted_ms", "low_ms", "high_ms")}


@dataclass(frozen=True)
class Estimate(Times):
    """The predicted time of a pass or step, in ms, its interval, and where it comes from.

    ``outside`` is the share of the time outside of the training range. ``predict_operators`` predicts the operators.
    ``launches_ms``: of the launches, where they are predicted apart. ``parallel_ms``: what many GPUs add to
    the time of one, see ``lib.predict.parallel``.
    """

    predicted_ms: float
    low_ms: float
    high_ms: float
    outside: float
    provenance: Provenance
    predict_operators: Callable[[], pd.DataFrame] = pd.DataFrame
    launches_ms: float | None = None
    parallel_ms: float = 0.0

    def scaled(self, factor: float, half: float, **changes: Any) -> "Estimate":
        """Return this estimate times a factor; ``half``: of the factor's interval, in log, whose errors are independent."""
        ms = self.predicted_ms
        below, above = (math.exp(math.hypot(math.log(end / ms), half)) for end in (self.low_ms, self.high_ms))
        return replace(self, predicted_ms=ms * factor, low_ms=ms * factor / below, high_ms=ms * factor * above, **changes)

    @cached_property
    def operators(self) -> pd.DataFrame:
        """Give the operators with ``predicted_ms``, see ``predicted_operators``."""
        return self.predict_operators()


def predicted_operators(work: Work, model: CostModel, measured: Mapping[tuple, float] | None = None) -> pd.DataFrame:
    """Return the operators of ``work`` with ``predicted_ms, at_least, looked_up, out_of_range, half, origin, part, cost_ms``.

    ``measured`` maps ``key_of`` an operator to a measured time in ms, which is taken as it is (``looked_up``). An operator that
    no family covers takes at least the time of its FLOPs at the peak rate (``at_least``). ``half`` is half of the interval in
    log time, ``cost_ms`` the time of all calls. Operators that autocast runs in fp32 are predicted by a 16-bit model from their
    bytes and FLOPs; ``origin`` says so.
    """
    table, answer = work.table, model.predict(work.table)
    least_ms = np.where(table["covered"], 0.0, table["flops"] / model.facts.get("peak_gflops", np.inf) / 1e6)
    same_dtype = table["dtype"].isin(("", model.facts.get("dtype", "fp32")))
    times = pd.Series([(measured or {}).get(key, np.nan) for key in work.keys], table.index, float).where(same_dtype)
    looked_up = times.notna()
    predicted_ms = np.maximum(times.fillna(answer["predicted_ms"]), least_ms)
    return table.assign(predicted_ms=predicted_ms, at_least=least_ms > answer["predicted_ms"], looked_up=looked_up,
                        out_of_range=(answer["out_of_range"] | ~table["covered"].astype(bool)) & ~looked_up,
                        half=np.log(answer["high_ms"] / answer["predicted_ms"]), part=answer["part"],
                        origin=answer["origin"].where(same_dtype | (answer["origin"] != ""), _BY_BYTES),
                        cost_ms=predicted_ms * table["calls"])


def lookup(table: pd.DataFrame) -> dict[tuple, float]:
    """Return the measured time in ms of each row of a ``sweep`` table, by ``key_of``."""
    return dict(zip(map(key_of, table.to_dict("records")), table["latency_ms"], strict=True))


def kinds_of(operators: pd.DataFrame) -> np.ndarray:
    """Return the kind (of OPERATOR_KINDS) of each operator, rows of a ``sweep`` table."""
    names = operators["op"].tolist()
    kinds, convolves = np.array([_KIND.get(name, "copies") for name in names], object), np.isin(names, ("conv2d", "conv3d"))
    if convolves.any():  # in numpy: it is asked for in every question of a table
        columns = [name for name in operators if "kernel_" in name]
        window = np.nanprod(operators[columns].to_numpy(float)[convolves], axis=1)
        groups, channels = operators[["groups", "in_channels"]].to_numpy(float)[convolves].T
        kinds[convolves] = np.select([(groups > 1) & (groups == channels), groups > 1, window == 1],
                                     ["conv_depthwise", "conv_grouped", "conv_1x1"], "conv")
    return kinds.astype(str)


def kinds_ms(operators: pd.DataFrame) -> dict[str, float]:
    """Return the ms of each kind of predicted operators."""
    kinds, cost_ms = kinds_of(operators), operators["cost_ms"].to_numpy()
    return {kind: float(cost_ms[kinds == kind].sum()) for kind in OPERATOR_KINDS}


def parts_of(work: Work, operators: pd.DataFrame) -> dict[str, float]:
    """Return TIME_TERMS of a network's time: the ms of each kind of operator, and the MB of fresh memory."""
    return {**{f"{kind}_ms": ms for kind, ms in kinds_ms(operators).items()}, "fresh_mb": work.fresh_bytes / 1e6}


def terms(parts: Terms, efficiencies: Terms) -> dict[str, float]:
    """Return TERMS from TIME_TERMS: ``sum_ms`` of computing kinds, ``moved_ms`` of moving ones, each times its efficiency.

    A kind without an efficiency has 1.
    """
    kinds_ms = {kind: efficiencies.get(kind, 1.0) * parts[f"{kind}_ms"] for kind in OPERATOR_KINDS}
    sum_ms = sum(kinds_ms[kind] for kind in COMPUTING)
    return {"sum_ms": sum_ms, "moved_ms": sum(kinds_ms.values()) - sum_ms, "fresh_mb": parts["fresh_mb"]}


def time_shares(operators: pd.DataFrame) -> dict[str, float]:
    """Return the shares of the operators' time that lie outside of the training range and that were looked up."""
    share = operators["cost_ms"] / operators["cost_ms"].sum()
    return {"outside": float(share[operators["out_of_range"]].sum()), "looked_up": float(share[operators["looked_up"]].sum())}


def estimate(work: Work, model: CostModel, composition: Composition, measured: Mapping[tuple, float] | None = None) -> Estimate:
    """Predict a pass or step from its operators; the interval is that of networks of unseen families.

    The interval has no upper end (inf) if only the least time of an operator is known.
    """
    operators = predicted_operators(work, model, measured)
    share, outside = operators["cost_ms"] / operators["cost_ms"].sum(), time_shares(operators)["outside"]
    origins = share.groupby(operators["origin"]).sum().drop("", errors="ignore")
    learned = model.efficiencies.get(work.mode, {}) if composition.networks else {}
    half = float(share @ operators["half"])
    predicted_ms, low_ms, high_ms = composition.predict(terms(parts_of(work, operators), learned), outside, half)
    high_ms = math.inf if work.uncounted or operators["at_least"].any() else high_ms
    return Estimate(predicted_ms, low_ms, high_ms, outside, Provenance(origins.to_dict()), lambda: operators)
