"""Advice: where a network should run, how long it takes there, and what bounds it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Any

import pandas as pd

from lib.errors import InputError, choices
from lib.predict import registry
from lib.predict.advice.query import COLUMNS, Answer, CapturedQuery, is_by_runtime
from lib.predict.networks import gains
from lib.predict.power import limits
from lib.work.run_config import INT8, USUAL_CONDITION, DeviceCondition, RunConfig

BATCHES = (1, 4, 16, 64, 256)
_TIE = 0.1  # share of a range's reach, in log time, below which a difference of two predictions says nothing
_COMPARED = 3  # devices that are compared over batch sizes: this machine's CPU and the fastest


@dataclass(frozen=True)
class Advice:
    """The answers of some devices, also as rows (COLUMNS), the fastest first, and the batch sizes where the best changes."""

    captured: CapturedQuery
    answers: Sequence[Answer]
    table: pd.DataFrame
    crossovers: Sequence[str] = ()

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

    @property
    def reason(self) -> str:
        """Return why it is recommended."""
        fitting = self.table[self.table["fits"]].to_dict("records")
        if not fitting:
            return f"none: {self.table['memory_mb'].iloc[0]:,.0f} MB fit into no known device"
        best, ties = fitting[0], tied(fitting)
        slower = fitting[len(ties):]
        high = "or more" if math.isinf(best["high_ms"]) else f"to {best['high_ms']:,.3g}"
        text = f"{best['device']}: {best['predicted_ms']:,.3g} ms ({best['low_ms']:,.3g} {high})"
        if len(ties) > 1:
            text += f", tied with {choices(row['device'] for row in ties[1:])}"
        if slower:
            text += f", {slower[0]['predicted_ms'] / best['predicted_ms']:.3g} times as fast as {slower[0]['device']}"
            text += ", but their intervals overlap: measure both" * (slower[0]["low_ms"] < best["high_ms"])
        return text + "; it lies out of its model's training range" * best["out_of_range"]


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that tie with the first one, the fastest: their times differ by little beside both 90 % ranges."""
    def reach(row: Mapping[str, Any]) -> float:
        return math.log(min(row["high_ms"] / row["predicted_ms"], row["predicted_ms"] / row["low_ms"]))

    best = rows[0]
    return [best, *takewhile(lambda row: math.log(row["predicted_ms"] / best["predicted_ms"])
                             <= _TIE * min(reach(best), reach(row)), rows[1:])]


def advise(config: RunConfig, devices: Sequence[str] = (), crossovers: bool = True,
           condition: DeviceCondition = USUAL_CONDITION) -> Advice:
    """Predict a run on the named devices in a condition, or on all that have a model, and recommend one.

    Raises InputError for a network that cannot be built or captured, and for a device without a model (they are listed).
    """
    captured = CapturedQuery(config)
    predictors = for_networks(devices, config.dtype, is_by_runtime(config))
    results = answers(captured, predictors, bool(devices), condition=condition)
    table = predictions(results)
    fastest = ["cpu", *table.loc[table["device"] != "cpu", "device"]][:_COMPARED]
    compared = [answer for answer in results if answer.predictor.device in fastest]
    return Advice(captured, results, table, _crossovers(compared) if crossovers and len(compared) > 1 else ())


def for_networks(devices: Sequence[str], dtype: str, in_runtime: bool = False) -> list[registry.Predictor]:
    """Return the devices that networks can be predicted on in an element type, see ``registry.for_devices``.

    This machine's CPU answers from its fp32 model and a learned gain, or in another runtime, if it has no model of the type.
    """
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

    With several GPUs, CPUs are left out; under a power limit, GPUs that do not take it. Raises InputError if no device is left,
    or if one that was ``named`` is left out.
    """
    config, limit_w = captured.config, condition.power_limit_w
    results = [Answer(captured, predictor, batch_size, condition) for predictor in predictors]
    able = [answer for answer in results if (config.is_plain or answer.condition or answer.uses_gain or answer.uses_runtime)
            and (config.gpus == 1 or answer.predictor.device_type != "cpu")]
    if not able or (named and len(able) < len(results)):
        unable = choices(answer.predictor.device for answer in results if answer not in able)
        raise InputError(f"no networks were measured in this condition ({config.label}) for: {unable}")
    refusals = [limit_w and limits.refusal(answer.predictor.kind, limit_w) for answer in able]
    if all(refusals) or (named and any(refusals)):
        raise InputError(next(filter(None, refusals if named else reversed(refusals))))  # of a GPU: the CPU is the first
    return [answer for answer, refusal in zip(able, refusals, strict=True) if not refusal]


def predictions(results: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per device (COLUMNS), the fastest first."""
    return pd.DataFrame([answer.columns for answer in results], columns=COLUMNS).sort_values("predicted_ms", ignore_index=True)


def _crossovers(compared: Sequence[Answer]) -> list[str]:
    """Return the batch sizes at which another device becomes the fastest, in words."""
    changes, last = [], ""
    for batch in BATCHES:
        results = [replace(answer, batch_size=batch) for answer in compared]
        rows = [{"device": answer.predictor.device, **answer.estimate.times} for answer in results if answer.fits]
        rows.sort(key=itemgetter("predicted_ms", "device"))
        best = " or ".join(sorted(row["device"] for row in tied(rows))) if rows else "none (memory)"
        if best != last:
            changes.append(f"from batch {batch * compared[0].config.gpus}: {best}")
        last = best
    return changes
