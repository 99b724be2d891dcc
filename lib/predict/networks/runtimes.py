"""How long a network takes on a CPU in another runtime, in int8, compiled, on fewer threads, or in several processes.

The time is a sum of what each kind of operator takes, of weights, calls and fresh memory, at rates that networks of one machine
taught, condition by condition: a runtime that fuses a kind has a rate near 0 for it. On another machine, or this
one calibrated, the ratio of two such sums scales the eager estimate. A network smaller than those that taught gets the cost of
a call added: a pass of an empty network. In the larger ones the rates explain it, at most 2 % of their time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import pandas as pd

from lib import csv_files, paths
from lib.errors import InputError, choices
from lib.measure import machine, worker
from lib.predict.model_file import AtLeastOne, Format, Limits, Positive, Saved, keyed, require
from lib.predict.networks import composition
from lib.predict.networks.composition import OPERATOR_KINDS, Composition, Estimate
from lib.predict.networks.sums import interval, sums
from lib.predict.networks.work import Work
from lib.work.run_config import CONDITION, RunConfig

FOLDER = paths.REFERENCE / "models" / "runtimes"
OUTSIDERS = FOLDER / "outsiders.csv"  # gains that others measured on their CPUs
CALLS = FOLDER / "calls.csv"  # passes of small networks, an empty one among them, by ``python -m benchmarks runtime_calls``
_CALL, _EMPTY = ["runtime", "compiled", "dtype", "threads"], "Empty"
_OUTSIDE_HALF = np.log(3.5)  # of networks smaller or larger than those that taught: small ones of CALLS are off by up to 3
RETRAIN = "train it again with: python -m lib models --train runtimes"
KINDS = (*OPERATOR_KINDS, "relu", "gelu", "activation", "softmax")
TERMS = (*KINDS, "weights", "calls", "fresh")
_WEIGHT_MS, _CALL_MS, _FRESH_MS = 0.15, 0.004, 0.3  # what a MB of weights, a call and a MB of fresh memory are expected to cost
_FLOPS, _BYTES = 1.5e8, 2e7  # in a ms, of a usual CPU: learned rates make up for another one
_NO_FRESH = 0.02  # of that, expected of a runtime with memory of its own
# spreads of logs about the rates of the starting condition: of a kind, of all kinds, of weights, calls and fresh memory
_FIRST, _LATER, _NOISE = (0.5, 1.0, (1.0, 1.0, 1.0)), (0.3, 0.7, (0.5, 0.5, 1.0)), 0.15

EAGER, _EXPORTED = RunConfig(), RunConfig(runtime="onnxruntime")


def condition_here(config: RunConfig) -> RunConfig:
    """Return the condition of a run on this CPU: as many threads as it has cores are all (0)."""
    threads = 0 if config.threads == worker.usable_cores() else config.threads
    return replace(config.condition, threads=threads)


def starting_condition(condition: RunConfig) -> RunConfig | None:
    """Return the condition whose rates one's are expected near; None for eager torch and ONNX Runtime."""
    if condition.instances > 1:
        return replace(condition, instances=1)
    if condition.threads:
        return replace(condition, threads=0)
    if condition.dtype != "fp32":
        return replace(condition, dtype="fp32")
    return None if condition in (EAGER, _EXPORTED) else _EXPORTED


def _kinds_of(operators: pd.DataFrame) -> np.ndarray:
    """Return the kind (of KINDS) of each operator: activations and softmax apart, which runtimes fuse or keep in fp32."""
    names = operators["op"].to_numpy(str)
    variants = operators["kind"] if "kind" in operators else pd.Series("", operators.index)  # linear layers alone have none
    activations = variants.map({"relu": "relu", "hardtanh": "relu", "gelu": "gelu"}).fillna("activation")
    return np.select([names == "activation", names == "softmax"], [activations, names], composition.kinds_of(operators))


def terms(work: Work, operators: pd.DataFrame) -> dict[str, float]:
    """Return TERMS of a network in ms; ``operators`` are those of ``work`` as predicted (``predicted_operators``).

    Of an operator that is the geometric mean of its time in eager torch and of its roofline time at _FLOPS and _BYTES: another
    runtime has other kernels, which are nearer to the roofline.
    """
    roofline_ms = np.maximum(operators["flops"] / _FLOPS, operators["bytes"] / _BYTES) * operators["calls"]
    cost_ms = np.sqrt(operators["cost_ms"] * roofline_ms).groupby(_kinds_of(operators)).sum()
    return cost_ms.reindex(KINDS, fill_value=0.0).to_dict() | {
        "weights": work.weight_bytes / 1e6 * _WEIGHT_MS, "calls": work.calls * _CALL_MS,
        "fresh": work.fresh_bytes / 1e6 * _FRESH_MS}


def learn(rows: Mapping[RunConfig, pd.DataFrame],
          elsewhere: Mapping[RunConfig, Mapping[str, float]] = {}) -> dict[RunConfig, dict[str, float]]:
    """Learn the rates of TERMS of each condition from networks (TERMS and ``latency_ms``), the starting condition first.

    Rates are expected near those of the same condition ``elsewhere``, on another machine, where it was measured there.
    """
    rates: dict[RunConfig, dict[str, float]] = {}

    def learned(condition: RunConfig) -> np.ndarray:
        if condition not in rates:
            first, usual = starting_condition(condition) is None and condition not in elsewhere, np.ones(len(TERMS))
            if condition in elsewhere:
                usual = np.array([*elsewhere[condition].values()])
            elif not first:
                usual = learned(starting_condition(condition))
            elif condition != EAGER:
                usual[-1] = _NO_FRESH
            part, (kind, common, beside) = rows.get(condition), _FIRST if first else _LATER
            if part is not None and len(part):
                (model,) = sums(len(KINDS), (kind,), common, beside, _NOISE, usual)
                usual = model.rates(model.logs(part[list(TERMS)].to_numpy(float), part["latency_ms"].to_numpy(float)))
            rates[condition] = dict(zip(TERMS, usual.tolist(), strict=True))
        return np.array([*rates[condition].values()])

    for condition in rows:
        learned(condition)
    return {condition: rates[condition] for condition in rows}


@dataclass(frozen=True)
class Runtimes(Saved):
    """What networks of a machine taught: rates of TERMS by condition, and its instructions by element type.

    ``elsewhere_half``: half of the interval, in log time, of a condition's ``ratio`` on CPUs that taught nothing.
    ``flops``: of a pass of the smallest and of the largest network that taught.
    """

    machine: str
    threads: AtLeastOne
    instructions: dict[str, tuple[str, ...]]
    conditions: keyed(RunConfig, Composition, CONDITION)
    elsewhere_half: Positive
    flops: Limits

    FORMAT: ClassVar = Format("file of runtimes", RETRAIN)

    def __post_init__(self):
        """Refuse rates of other terms, what is no condition, and a file without eager torch."""
        for condition in self.conditions:
            condition.check()
        known = all(set(fitted.rates) == set(TERMS) for fitted in self.conditions.values())
        require(known, f"has rates of other terms than {TERMS}")
        require(EAGER in self.conditions, f"lacks {EAGER.label}")

    def ratio(self, condition: RunConfig, parts: Mapping[str, float], base: RunConfig = EAGER) -> float:
        """Return the time of a pass under a condition over that under ``base``; ``parts`` are TERMS of the network."""
        return self.conditions[condition].total(parts) / self.conditions[base].total(parts)

    def applies(self, condition: RunConfig, instructions: Mapping[str, Sequence[str]]) -> bool:
        """Return whether a condition's ``ratio`` is that of a CPU with these instructions, too, on as many cores."""
        dtype = condition.dtype
        return condition in self.conditions and self.instructions.get(dtype, ()) == tuple(instructions.get(dtype, ()))

    def is_smaller(self, work: Work) -> bool:
        """Return whether a pass has fewer FLOPs than those of all networks that taught."""
        return work.flops < self.flops[0]

    def refusal(self, condition: RunConfig) -> str:
        """Return why nothing is known of a condition on this CPU; empty where something is."""
        if condition not in self.conditions:
            return (f"no networks were measured on a CPU in {condition.label}; there are: "
                    f"{choices(other.label for other in self.conditions)}")
        theirs, own = self.instructions.get(condition.dtype, ()), machine.instructions(condition.dtype)
        if theirs != own:
            return (f"networks were measured in {condition.dtype} on a CPU with "
                    f"{choices(theirs) or 'no instructions for it'}, and this one has {choices(own) or 'none'}")
        if (condition.threads or condition.instances > 1) and worker.usable_cores() != self.threads:
            return (f"threads and processes were measured on a CPU with {self.threads} cores, and this one has "
                    f"{worker.usable_cores()}")
        return ""


@cache
def shipped() -> Runtimes:
    """Return what ships: this machine's, or that of the CPU most like it by instructions; InputError where nothing does."""
    files = [Runtimes.load(path) for path in sorted(FOLDER.glob("*.json"))]
    if not files:
        raise InputError(f"no runtimes ship in {FOLDER}; {RETRAIN}")
    return nearest(files, {dtype: machine.instructions(dtype) for dtype in ("bf16", "int8")}, machine.name())


def nearest(files: Sequence[Runtimes], instructions: Mapping[str, Sequence[str]], name: str = "") -> Runtimes:
    """Return what was learned on the machine ``name``, or else on the CPU most like one with these ``instructions``.

    Of CPUs that are equally like it, that with most networks.
    """
    def distance(file: Runtimes) -> tuple[bool, int, int]:
        differing = sum(tuple(wanted) != file.instructions.get(dtype, ()) for dtype, wanted in instructions.items())
        return file.machine != name, differing, -sum(fitted.networks for fitted in file.conditions.values())

    return min(files, key=distance)


def known() -> tuple[RunConfig, ...]:
    """Return the conditions other than eager torch that networks were measured in on a CPU like this one."""
    return tuple(condition for condition in shipped().conditions if condition != EAGER and not shipped().refusal(condition))


@cache
def _empty_passes() -> pd.DataFrame:
    table = csv_files.with_columns(CALLS, ("machine", "network", *_CALL, "low_ms"), "see data/README.md")
    return table[table["network"] == _EMPTY]


def call_cost(condition: RunConfig) -> tuple[float, str]:
    """Return the ms of a pass of an empty network, and the machine: this one, or else all that measured it (the median).

    Raises InputError for a condition in which none did.
    """
    rows = _empty_passes()
    rows = rows[(rows[_CALL] == [getattr(condition, name) for name in _CALL]).all(axis=1)]
    own = rows[rows["machine"] == machine.name()]
    if rows.empty:
        raise InputError(f"{CALLS} has no empty network in {condition.label}; measure it with: "
                         "python -m benchmarks runtime_calls")
    rows = rows if own.empty else own
    return float(rows["low_ms"].median()), choices(rows["machine"])


@dataclass(frozen=True)
class RuntimeAnswer:
    """The time of a pass in ms and its range, and the evidence.

    ``is_borrowed``: learned on another machine. ``is_outside``: from larger or smaller networks alone.
    """

    predicted_ms: float
    low_ms: float
    high_ms: float
    evidence: str
    is_borrowed: bool
    is_outside: bool = False


def answer(work: Work, parts: Mapping[str, float], heaps: Mapping[str, Estimate], condition: RunConfig) -> RuntimeAnswer:
    """Predict a pass of a network under a condition on this CPU; ``parts`` are its TERMS.

    ``heaps``: the estimates of eager torch with a retained heap (``kept``) and the default one. Raises InputError for what no
    networks were measured in on a CPU like this one.
    """
    models = shipped()
    if refused := models.refusal(condition):
        raise InputError(refused)
    fitted, eager = models.conditions[condition], models.conditions[EAGER]
    computing = {name: ms for name, ms in parts.items() if name != "fresh"} | {"fresh": 0.0}
    kept, fresh_ms = heaps["kept"], max(0.0, heaps["default"].predicted_ms - heaps["kept"].predicted_ms)
    ms = kept.predicted_ms * fitted.total(computing) / eager.total(computing) + \
        fresh_ms * fitted.rates["fresh"] / eager.rates["fresh"]
    is_borrowed, scores = models.machine != machine.name(), fitted.scores
    half = float(np.hypot(models.elsewhere_half if is_borrowed else fitted.half, np.log(kept.high_ms / kept.predicted_ms)))
    evidence = (f"{condition.label}: from {fitted.networks} networks on {models.machine} with {models.threads} threads; "
                f"there the time of families left out errs by {scores['mape']:.0f} % (typically {scores['median']:.0f} %)")
    is_outside = not models.flops[0] <= work.flops <= models.flops[1]
    if is_outside:
        half, (least, most) = max(half, _OUTSIDE_HALF), (f"{flops / 1e9:.3g}" for flops in models.flops)
        evidence += f"; its {work.flops / 1e9:.3g} GFLOPs lie outside of the {least} to {most} of these networks"
    if models.is_smaller(work):
        call_ms, called_on = call_cost(condition)
        ms += call_ms
        evidence += f"; a call costs {call_ms * 1e3:.3g} us (an empty network on {called_on})"
    return RuntimeAnswer(*interval(ms, half), evidence, is_borrowed, is_outside)


def conditions_of(rows: pd.DataFrame) -> list[RunConfig]:
    """Return the condition of each row of a table ``networks``; the most threads are all."""
    threads = rows["threads"].where(rows["threads"] != rows["threads"].max(), 0)
    return [RunConfig.from_row(row).condition for row in rows.assign(threads=threads).to_dict("records")]
