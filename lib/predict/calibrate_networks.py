"""Calibration by a few small networks, measured end to end on this machine: they correct the compositions of another one.

Few networks are weighed against the other machine's compositions by how far networks scatter (empirical Bayes: Efron and
Morris, 1975).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats
from torch import nn

from lib import paths
from lib.measure.networks import campaign
from lib.measure.networks.allocator import HEAPS
from lib.measure.reference_kernel import ProcessorSpeed
from lib.measure.statistics import is_usable
from lib.predict import network_training
from lib.predict.network_training import Works
from lib.predict.networks import sums, work
from lib.predict.networks.composition import PLAIN_SUM, TERMS, Composition
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.registry import Predictor
from lib.predict.scores import COVER, score
from lib.work import networks
from lib.work.graph import capture
from lib.work.graph.ops import MODES
from lib.work.run_config import RunConfig

# small networks of many families, none of them held out anywhere; the first ones fit into any budget
NETWORKS = ("mobilenet_v3_small timm:pit_ti_224 squeezenet1_1 timm:convnext_atto resnet18 timm:levit_128s mnasnet0_5 "
            "timm:edgenext_xx_small timm:repvgg_a0 shufflenet_v2_x0_5 timm:poolformerv2_s12 timm:ghostnet_050 "
            "timm:resnext26ts densenet121 swin_t").split()
CASES = (("infer", 1), ("infer", 8), ("train", 8))
MOMENTS = (slice(0, None, 2), slice(1, None, 2), slice(None))  # networks that run before, amid and after the operators
_VISITS = 2  # of each network
_CASE = ["network", "mode", "batch_size"]
LEAST_NETWORKS = 2
_LONGEST_MS = 400.0  # a batch whose pass is predicted to take longer is halved
_CASE_S, _PROCESS_S, _PASSES = 0.3, 3.0, 9  # seconds a case at least, and a process; passes of a case, warm-up included
_CERTAIN = 0.975  # confidence that networks err more, before a calibration is refused
_NO_TIME_S = 1e-3  # 0 would be no limit
_BETWEEN, _MODES, _FRESH = 0.3, 0.1, 0.5  # prior spreads of logs: between machines, of a mode about it, of page faults
_SPREAD = 0.2  # of networks about their prediction, if the other machine measured none
_WEIGHT = 3.0  # weight of the other machine's spread, in networks
Compositions = Mapping[str, Composition]


@dataclass(frozen=True)
class Networks:
    """What was measured (usable rows of ``networks``), errors before and after (``score``), and whether they have grown."""

    rows: pd.DataFrame
    before: dict[str, float]
    after: dict[str, float]
    worse: bool = False

    @property
    def count(self) -> int:
        """Return how many networks are usable."""
        return int(self.rows["network"].nunique())


def _fitting(predictor: Predictor, name: str, mode: str, batch_size: int, ready: nn.Module) -> tuple[RunConfig, Work, float]:
    """Return a case whose batch is halved until a pass is predicted to be short, its work, and the ms of a pass."""
    item = work.captured(networks.network(name, batch_size), mode, ready=ready)
    pass_ms = predictor.estimate(item).predicted_ms
    if batch_size == 1 or pass_ms <= _LONGEST_MS:
        return RunConfig(name, batch_size, mode=mode), item, pass_ms
    return _fitting(predictor, name, mode, batch_size // 2, ready)


def choose(model: CostModel, budget_s: float) -> tuple[list[tuple[RunConfig, str]], Works]:
    """Return the cases, with their heaps, that are predicted to fit into a budget when each runs twice, and their work.

    Networks infer at batch 1 and 8 in turn, and train. The first network runs with both heaps, the others with the default
    one. The first two networks run in any case.
    """
    predictor, chosen, works, needed_s = Predictor(model.device, "fp32", model), [], {}, 0.0
    for number, name in enumerate(NETWORKS):
        heaps, ready = ("default",) if number else HEAPS, capture.prepared(networks.network(name))
        cost_s, fitting = _VISITS * _PROCESS_S * len(heaps), {}
        for mode, batch in (CASES[number % 2], CASES[-1]):
            case, item, pass_ms = _fitting(predictor, name, mode, batch, ready)
            more_s = _VISITS * len(heaps) * max(_CASE_S, _PASSES * pass_ms / 1e3)
            if needed_s + cost_s + more_s <= budget_s or number < LEAST_NETWORKS:
                fitting[case], cost_s = item, cost_s + more_s
        if not fitting:
            break
        chosen += [(case, heap) for case in fitting for heap in heaps]
        works |= {(case.network, case.mode, case.batch_size): item for case, item in fitting.items()}
        needed_s += cost_s
    return chosen, works


def measure(cases: Sequence[tuple[RunConfig, str]], moment: int, budget_s: float, name: str) -> pd.DataFrame:
    """Measure the networks of one of MOMENTS, each in a fresh process, in their share of a budget for all moments.

    Returns rows of ``networks`` with ``moment`` and ``reference_ms``, the reference kernel's median. They are kept in
    ``data/networks/NAME_<moment>``.
    """
    names, folder = list(dict.fromkeys(case.network for case, _ in cases)), paths.NETWORKS / f"{name}_{moment}"
    wanted = [(case, heap) for case, heap in cases if case.network in names[MOMENTS[moment]]]
    share_s = budget_s * len(wanted) / (_VISITS * len(cases))
    table, facts = campaign.measure(wanted, "cpu", 1, _CASE_S, max(_NO_TIME_S, share_s), folder / "visits.jsonl")
    campaign.write(table, folder / "networks.parquet", **facts, rounds=1, cases=len(wanted))
    return table.assign(moment=moment, reference_ms=campaign.reference_ms(table, folder / "visits.jsonl"))


def at_usual_speed(rows: pd.DataFrame, speed: ProcessorSpeed) -> tuple[pd.DataFrame, ProcessorSpeed]:
    """Return the usable rows of ``measure`` at the processor's usual speed, and how networks follow the reference kernel.

    ``speed`` is that by which operators do; networks that ran at moments of different speed correct its elasticity.
    """
    usable = rows[is_usable(rows)].reset_index(drop=True)
    visits = pd.DataFrame({"config": usable.groupby([*_CASE, "memory"]).ngroup(), "latency_ms": usable["latency_ms"],
                           "yardstick_ms": usable["reference_ms"]})
    speed = replace(speed, elasticity=ProcessorSpeed.from_visits(visits, speed.elasticity).elasticity)
    return usable.assign(latency_ms=speed.at_usual_ms(usable["latency_ms"], usable["reference_ms"])), speed


def calibrate(model: CostModel, before: CostModel, rows: pd.DataFrame, works: Works) -> Networks:
    """Correct the compositions of ``model`` by measured networks; ``before`` is the model before fine-tuning.

    With fewer than LEAST_NETWORKS usable networks the compositions stay.
    """
    measured, before_ms = rows["latency_ms"].to_numpy(float), _estimated(before, rows, works)
    if rows["network"].nunique() < LEAST_NETWORKS:
        return Networks(rows, score(measured, before_ms), score(measured, _estimated(model, rows, works)))
    base, terms = model.compositions, network_training.terms(model, rows, works)
    model.compositions = calibrated(base, terms)
    after_ms = left_one_out(base, terms)["predicted_ms"].to_numpy()
    errors = (pd.Series(np.abs(np.log(ms / measured)), rows.index) for ms in (before_ms, after_ms))
    return Networks(terms, score(measured, before_ms), score(measured, after_ms), _worse(rows["network"], *errors))


def _worse(network: pd.Series, before: pd.Series, after: pd.Series) -> bool:
    """Return whether the errors of networks have grown, by a one-sided t-test of their means."""
    grown = (after - before).groupby(network).mean()
    return bool(grown.mean() > max(0.0, stats.t.ppf(_CERTAIN, len(grown) - 1) * grown.sem()))


def _estimated(model: CostModel, rows: pd.DataFrame, works: Works) -> np.ndarray:
    predictor = Predictor(model.device, "fp32", model)
    return np.array([predictor.estimate(works[row.network, row.mode, int(row.batch_size)], row.memory).predicted_ms
                     for row in rows.itertuples()])


def calibrated(base: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the compositions of ``base`` (by mode and heap) corrected by measured networks: factor, page faults, interval.

    ``rows``: ``network, mode, memory, moment, latency_ms, outside`` and TERMS. A mode with fewer than LEAST_NETWORKS networks
    is not corrected. Intervals come from networks left out in turn and from the base.
    """
    fitted, predicted, corrected = _fit(base, rows), left_one_out(base, rows), dict(base)
    for mode, of_mode in predicted.groupby("mode"):
        count = int(of_mode["network"].nunique())
        for heap in HEAPS if count >= LEAST_NETWORKS else ():
            case, of_case = f"{mode} {heap}", of_mode[of_mode["memory"] == heap]
            corrected[case] = replace(
                fitted[case], half=_half(base.get(case, PLAIN_SUM), of_case), networks=count,
                scores=score(of_case["latency_ms"], of_case["predicted_ms"]) if len(of_case) else {},
                interval_of="" if len(of_case) else fitted[case].interval_of)
    return corrected


def left_one_out(base: Compositions, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``predicted_ms`` by compositions that were corrected by other networks at other moments.

    So is the error that of a process which starts later. Where all other networks ran at one moment, they do.
    """
    def predicted(test: np.ndarray) -> np.ndarray:
        others = rows[rows["network"] != rows.loc[test, "network"].iloc[0]]
        later = others[others["moment"] != rows.loc[test, "moment"].iloc[0]]
        return _predicted(_fit(base, others if later.empty else later), rows[test])

    return rows.assign(predicted_ms=sums.cross_predicted(
        sums.each(rows.groupby(["network", "moment"]).ngroup()), predicted))


def _fit(base: Compositions, rows: pd.DataFrame) -> dict[str, Composition]:
    """Return the most probable compositions with one factor per mode for all rates and one for page faults.

    The log of the machine's factor has spread _BETWEEN, a mode's about it _MODES, the page faults' _FRESH. Each network counts
    once, with the scatter of the base's networks.
    """
    uncorrected = {f"{mode} {heap}": base.get(f"{mode} {heap}", PLAIN_SUM) for mode in MODES for heap in HEAPS}
    if rows.empty:
        return uncorrected
    fresh_ms = _predicted(uncorrected, rows.assign(sum_ms=0.0, moved_ms=0.0))
    of_mode = rows["mode"].to_numpy()[:, None] == np.array(MODES)
    parts = np.hstack([of_mode * (_predicted(uncorrected, rows) - fresh_ms)[:, None], of_mode * fresh_ms[:, None]])
    doubt = min(map(_spread, uncorrected.values())) * np.sqrt(rows.groupby("network")["mode"].transform("size").to_numpy())
    (fitted,) = sums.sums(len(MODES), (_MODES,), _BETWEEN, [_FRESH] * len(MODES), doubt, np.ones(2 * len(MODES)), "linear")
    factors = fitted.rates(fitted.logs(parts, rows["latency_ms"].to_numpy(float))).tolist()

    def corrected(mode: str, composition: Composition) -> Composition:
        usual, fresh = (factors[MODES.index(mode) + of_fresh] for of_fresh in (0, len(MODES)))
        return replace(composition, rates={name: rate * (fresh if name == "fresh_mb" else usual)
                                           for name, rate in composition.rates.items()})

    return {case: corrected(case.split()[0], composition) for case, composition in uncorrected.items()}


def _predicted(compositions: Compositions, rows: pd.DataFrame) -> np.ndarray:
    """Return the ms that each row's composition predicts."""
    return np.array([compositions[f"{row['mode']} {row['memory']}"].total(row)
                     for row in rows[["mode", "memory", *TERMS]].to_dict("records")])


def _spread(composition: Composition) -> float:
    """Return the standard deviation that an interval stands for, in log time."""
    known = composition.networks and composition.half
    return composition.half / float(stats.norm.ppf((1 + COVER) / 2)) if known else _SPREAD


def _half(base: Composition, residuals: pd.DataFrame) -> float:
    """Return half of the interval of unseen networks, from networks left out and the base's spread."""
    error = np.log(residuals["latency_ms"] / residuals["predicted_ms"]) / (1 + residuals["outside"])
    squares = (error**2).groupby(residuals["network"]).mean()
    freedom = _WEIGHT + len(squares)
    variance = (_WEIGHT * _spread(base)**2 + float(squares.sum())) / freedom
    return float(stats.t.ppf((1 + COVER) / 2, freedom) * np.sqrt(variance))
