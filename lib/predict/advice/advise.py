"""Advice: where a network should run, how long it takes there, and what bounds it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.predict import registry
from lib.predict.advice.query import COLUMNS, Answer, CapturedQuery, is_by_runtime
from lib.predict.networks import gains
from lib.predict.power import energy, limits
from lib.work.run_config import INT8, TF32, USUAL_CONDITION, DeviceCondition, RunConfig

_TIE = 0.1  # share of a range's reach, in log time, below which a difference of two predictions says nothing


@dataclass(frozen=True)
class Advice:
    """The answers of some devices, also as rows (COLUMNS), the fastest first."""

    captured: CapturedQuery
    answers: Sequence[Answer]
    table: pd.DataFrame

    def of(self, device: str) -> Answer | None:
        """Return the answer of a device; None without one."""
        return next((answer for answer in self.answers if answer.predictor.device == device), None)

    @property
    def suggestion_target(self) -> Answer:
        """Return the answer that changes are suggested for: this machine's CPU if it fits, else the recommended device."""
        fitting = [*self.table.loc[self.table["fits"], "device"]]
        return self.of("cpu" if "cpu" in fitting else self.recommended) or self.answers[0]

    @property
    def recommended(self) -> str:
        """Return the fastest device that the network fits into; empty without one."""
        return next(iter(self.table.loc[self.table["fits"], "device"]), "")


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that tie with the first one, the fastest: their times differ by little beside both 90 % ranges."""
    def reach(row: Mapping[str, Any]) -> float:
        return math.log(min(row["high_ms"] / row["predicted_ms"], row["predicted_ms"] / row["low_ms"]))

    best = rows[0]
    return [best, *takewhile(lambda row: math.log(row["predicted_ms"] / best["predicted_ms"])
                             <= _TIE * min(reach(best), reach(row)), rows[1:])]


def advise(config: RunConfig, devices: Sequence[str] = (),
           condition: DeviceCondition = USUAL_CONDITION) -> Advice:
    """Predict a run on the named devices in a condition, or on all that have a model, and recommend one.

    Raises InputError for a network that cannot be built or captured, and for a device without a model (they are listed).
    """
    captured = CapturedQuery(config)
    predictors = for_networks(devices, config.dtype, is_by_runtime(config))
    results = answers(captured, predictors, bool(devices), condition=condition)
    return Advice(captured, results, predictions(results))


def for_networks(devices: Sequence[str], dtype: str, in_runtime: bool = False) -> list[registry.Predictor]:
    """Return the devices that networks can be predicted on in an element type, see ``registry.for_devices``.

    This machine's CPU answers from its fp32 model and a learned gain, or in another runtime, if it has no model of the type.
    """
    dtype = "fp32" if dtype == TF32 else dtype
    repeated, by_gain = len(set(devices)) < len(devices), in_runtime or dtype == INT8 or gains.serves(dtype)
    if repeated or (devices and "cpu" not in devices) or registry.has_cpu(dtype) or not by_gain:
        return registry.for_devices(devices, dtype)
    (cpu,) = registry.for_devices(["cpu"], "fp32")
    gpus = [device for device in devices if device != "cpu"]
    has_gpus = gpus or (not devices and dtype != INT8)
    return [replace(cpu, dtype=dtype), *(registry.for_devices(gpus, dtype) if has_gpus else ())]


def answers(captured: CapturedQuery, predictors: Sequence[registry.Predictor], named: bool,
            batch_size: int = 0, condition: DeviceCondition = USUAL_CONDITION) -> list[Answer]:
    """Return the answers of the devices that can be predicted in the run's layout, compiled or not.

    With several GPUs, CPUs are left out; under a power limit or at a clock, devices that do not take it. Raises InputError if
    no device is left, or if one that was ``named`` is left out.
    """
    config = captured.config
    results = [Answer(captured, predictor, batch_size, condition) for predictor in predictors]
    able = [answer for answer in results if _is_able(answer)]
    if not able or (named and len(able) < len(results)):
        unable = choices(answer.predictor.device for answer in results if answer not in able)
        raise InputError(f"no networks were measured in this condition ({config.label}) for: {unable}")
    refusals = [_refusal(answer.predictor.kind, condition) for answer in able]
    if all(refusals) or (named and any(refusals)):
        raise InputError(next(filter(None, refusals if named else reversed(refusals))))  # of a GPU: the CPU is the first
    return [answer for answer, refusal in zip(able, refusals, strict=True) if not refusal]


def _is_able(answer: Answer) -> bool:
    """Return whether a device can be predicted as the run is configured."""
    config = answer.config
    if answer.condition:
        return not config.is_for_cpu
    on_cpu = config.gpus == 1 and config.dtype != TF32 and config.autocast
    return on_cpu and (config.is_plain or answer.uses_gain or answer.uses_runtime)


def _refusal(device: str, condition: DeviceCondition) -> str:
    """Return why a device does not take the condition; empty if it does."""
    if condition.clock_mhz:
        return energy.refusal(device, condition.clock_mhz)
    return limits.refusal(device, condition.power_limit_w) if condition.power_limit_w else ""


def predictions(results: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per device (COLUMNS), the fastest first."""
    return pd.DataFrame([answer.columns for answer in results], columns=COLUMNS).sort_values("predicted_ms", ignore_index=True)
