"""Calibration by a few small networks, measured end to end on this machine."""

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from scipy import stats
from torch import nn

from lib import paths
from lib.measure.budget import Budget
from lib.measure.networks import campaign
from lib.measure.networks.allocator import HEAPS
from lib.measure.networks.case import Case
from lib.measure.reference_kernel import ProcessorSpeed
from lib.measure.statistics import VERDICTS
from lib.predict import network_training
from lib.predict.network_training import Works
from lib.predict.networks import calibration, work
from lib.predict.networks.calibration import LEAST_NETWORKS
from lib.predict.networks.composition import Composition
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.registry import Predictor
from lib.work import networks
from lib.work.graph import capture

# small networks of many families, none of them held out anywhere; the first ones fit into any budget
NETWORKS = ("mobilenet_v3_small", "timm:pit_ti_224", "squeezenet1_1", "timm:convnext_atto", "resnet18", "timm:levit_128s",
            "mnasnet0_5", "timm:edgenext_xx_small", "timm:repvgg_a0", "shufflenet_v2_x0_5", "timm:poolformerv2_s12",
            "timm:ghostnet_050", "timm:resnext26ts", "densenet121", "swin_t")
CASES = (("infer", 1), ("infer", 8), ("train", 8))
_LONGEST_MS = 400.0  # a batch whose pass is predicted to take longer is halved
_CASE_S, _PROCESS_S, _PASSES = 0.3, 3.0, 9  # seconds a case at least, and a process; passes of a case, warm-up included
_CERTAIN = 0.975  # confidence that networks err more, before a calibration is refused
_NO_TIME_S = 1e-3  # 0 would be no limit


@dataclass(frozen=True)
class Networks:
    """What was measured (usable rows of ``networks``), and errors before and after in % (mape, bias, n)."""

    rows: pd.DataFrame
    before: dict[str, float]
    after: dict[str, float]
    worse: bool = False  # whether networks err more after than before, see ``_worse``

    @property
    def count(self) -> int:
        """Return how many networks are usable."""
        return int(self.rows["network"].nunique())


def errors(measured_ms: np.ndarray, predicted_ms: np.ndarray) -> dict[str, float]:
    """Return the mean absolute error and the mean error of predictions in %, and n; empty without any."""
    relative = (np.asarray(predicted_ms) / np.asarray(measured_ms) - 1) * 100
    return {"mape": float(np.abs(relative).mean()), "bias": float(relative.mean()), "n": len(relative)} if len(relative) else {}


def _fitting(predictor: Predictor, name: str, mode: str, batch_size: int, ready: nn.Module) -> tuple[Case, Work, float]:
    """Return a case whose batch is halved until a pass is predicted to be short, its work, and the ms of a pass."""
    item = work.captured(networks.network(name, batch_size), mode, ready=ready)
    pass_ms = predictor.estimate(item).predicted_ms
    if batch_size == 1 or pass_ms <= _LONGEST_MS:
        return Case(name, mode, batch_size), item, pass_ms
    return _fitting(predictor, name, mode, batch_size // 2, ready)


def _chosen(model: CostModel, budget: Budget) -> tuple[list[tuple[Case, str]], Works]:
    """Return the cases, with their heaps, that are predicted to fit into the rest of ``budget``, and their work.

    Networks infer at batch 1 and 8 in turn, and train. The first network runs with both heaps, the others with the default
    one. The first two networks run in any case.
    """
    predictor, chosen, works, needed_s = Predictor(model.device, "fp32", model), [], {}, 0.0
    for number, name in enumerate(NETWORKS):
        heaps, ready = ("default",) if number else HEAPS, capture.prepared(networks.network(name))
        cost_s, fitting = _PROCESS_S * len(heaps), {}
        for mode, batch in (CASES[number % 2], CASES[-1]):
            case, item, pass_ms = _fitting(predictor, name, mode, batch, ready)
            more_s = len(heaps) * max(_CASE_S, _PASSES * pass_ms / 1e3)
            if needed_s + cost_s + more_s <= budget.left_s or number < LEAST_NETWORKS:
                fitting[case], cost_s = item, cost_s + more_s
        if not fitting:
            break
        chosen += [(case, heap) for case in fitting for heap in heaps]
        works |= {(case.network, case.mode, case.batch_size): item for case, item in fitting.items()}
        needed_s += cost_s
    return chosen, works


def measure(model: CostModel, budget_s: float, name: str, speed: ProcessorSpeed) -> tuple[pd.DataFrame, Works]:
    """Measure as many networks as fit into ``budget_s``; return the usable rows and their work.

    Visits are kept in ``data/networks/NAME``; latencies are corrected to the processor's usual ``speed``.
    """
    budget = Budget(budget_s)
    cases, works = _chosen(model, budget)
    folder = paths.NETWORKS / name
    default_heap = [(case, heap) for case, heap in cases if heap == "default"]
    for batch in (default_heap, cases):  # different networks first; the second call resumes the first
        table, facts = campaign.measure(batch, "cpu", 1, _CASE_S, max(_NO_TIME_S, budget.left_s), folder / "visits.jsonl")
    campaign.write(table, folder / "networks.parquet", **facts, rounds=1, cases=len(cases))
    usable = table[(table["status"] == "ok") & (table["verdict"] != VERDICTS[-1])].reset_index(drop=True)
    kernel_ms = campaign.kernel_ms(usable, folder / "visits.jsonl")
    return usable.assign(latency_ms=speed.at_usual_ms(usable["latency_ms"], kernel_ms)), works


def calibrate(model: CostModel, before: CostModel, rows: pd.DataFrame, works: Works) -> Networks:
    """Correct the compositions of ``model`` by measured networks; ``before`` is the model before fine-tuning.

    With fewer than LEAST_NETWORKS usable networks the compositions stay.
    """
    measured, before_ms = rows["latency_ms"], _predicted(before, rows, works)
    if rows["network"].nunique() < LEAST_NETWORKS:
        return Networks(rows, errors(measured, before_ms), errors(measured, _predicted(model, rows, works)))
    base = {case: Composition(**fitted) for case, fitted in model.compositions.items()}
    terms = network_training.terms(model, rows, works)
    model.compositions = {case: asdict(fitted) for case, fitted in calibration.calibrated(base, terms).items()}
    after_ms = calibration.left_one_out(base, terms)["predicted_ms"]
    return Networks(terms, errors(measured, before_ms), errors(measured, after_ms),
                    worse=_worse(rows["network"], *(np.log(ms / measured).abs() for ms in (before_ms, after_ms))))


def _worse(network: pd.Series, before: pd.Series, after: pd.Series) -> bool:
    """Return whether the errors of networks have grown, by a one-sided t-test of their means."""
    grown = (after - before).groupby(network).mean()
    return bool(grown.mean() > max(0.0, stats.t.ppf(_CERTAIN, len(grown) - 1) * grown.sem()))


def _predicted(model: CostModel, rows: pd.DataFrame, works: Works) -> list[float]:
    predictor = Predictor(model.device, "fp32", model)
    return [predictor.estimate(works[row.network, row.mode, int(row.batch_size)], row.memory).predicted_ms
            for row in rows.itertuples()]
