"""Operator models: the time of a kernel from its shapes, with an interval and a warning out of the training range.

One model answers for one device, one element type and one way of timing. It has a part for each group of families and pass.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from lib.config.definitions import Dtype, VendorDevice
from lib.errors import InputError, choices
from lib.predict import boards
from lib.predict.analytic.scaling import Scaling
from lib.predict.model_file import (
    ENTRY,
    AtLeastOne,
    Below,
    Device,
    Format,
    NotNegative,
    Positive,
    Saved,
    Unsaved,
    require,
)
from lib.predict.operators import cudnn, features, gradients, inputs
from lib.predict.operators.chip import Chip
from lib.predict.operators.features import CONVOLUTIONS, Row
from lib.predict.operators.features_gpu import gemm_group
from lib.predict.operators.parts import Part

ANY_GPU = "any-gpu"  # the device of a model of several GPUs, which holds relative to a chip
PARTS_NOT_LENT = "speaks_for_itself"  # fact: groups of parts that no other device borrows, as the card was throttled
_GEMMS = ("gemm ", "attention ")  # the parts that run as fast as GEMMs
_ANY_CHIP = Chip(1.0, 1.0, 1.0, 1, 1.0, 4)
_GRADIENTS = "its forward kernels"  # part and origin of backward passes of convolutions that no part answers for
NETWORK_PARTS = ("compositions", "efficiencies", "resident")  # of whole networks
RETRAIN = ("train it again with: python -m lib models --train cpu, neusight or aiconfigurator; a calibrated one with: "
           "python -m lib calibrate")

PartAnswer = list[np.ndarray]  # ms, half intervals in log time, out of range, origins; n each


class Facts(TypedDict, total=False):
    """Facts about a model; a file may hold others, too."""

    __pydantic_config__ = {**ENTRY, "extra": "allow"}

    dtype: Dtype
    latency_type: Literal["kernel", "end_to_end"]
    cache: Literal["warm", "cold"]
    hardware_id: str
    software_id: str
    source: str
    licence: str
    launch_ms: NotNegative
    peak_gflops: Positive
    peak_gbps: Positive
    sweeps: list[Below]


@dataclass(frozen=True)
class Composition:
    """Rates of the terms of networks, for one mode and heap, and half of the interval in log time.

    ``networks`` counts the networks it was fitted to; with 0 the operators' intervals apply. ``interval_of`` names the heap
    that the interval comes from if this heap was not measured; it then has no scores.
    """

    __pydantic_config__: ClassVar = ENTRY

    rates: dict[str, NotNegative]
    half: NotNegative
    networks: AtLeastOne
    scores: dict[str, float] = field(default_factory=dict)
    interval_of: Literal["", "default", "kept"] = ""

    def predict(self, terms: Mapping[str, float], outside: float = 0.0,
                operators_half: float = 0.0) -> tuple[float, float, float]:
        """Return predicted, low and high ms; the interval widens by the share of the time out of range, ``outside``."""
        ms, half = self.total(terms), (self.half if self.networks else operators_half) * (1 + outside)
        return ms, ms * math.exp(-half), ms * math.exp(half)

    def total(self, terms: Mapping[str, Any]) -> Any:
        """Return the sum of terms at their rates."""
        return sum(rate * terms[name] for name, rate in self.rates.items())


@dataclass
class CostModel(Saved):
    """Operator models of one device, one element type and one way of timing; ``chip`` is None for a CPU.

    ``compositions`` (by mode and heap), ``efficiencies`` (by mode) and ``resident`` (by heap) were learned from networks.
    ``scaling`` is the last scaling of the whole model, see ``scaled``. It is not saved: each part has its own, relative to the
    machine that it was trained on.
    """

    device: Device
    facts: Facts
    parts: Annotated[dict[str, Part], Field(min_length=1)] = field(default_factory=dict)
    chip: Chip | None = None
    compositions: dict[str, Composition] = field(default_factory=dict)
    efficiencies: dict[str, dict[str, Positive]] = field(default_factory=dict)
    resident: dict[str, Composition] = field(default_factory=dict)
    scaling: Unsaved = None

    FORMAT: ClassVar = Format("cost model", RETRAIN, 4)

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return ``predicted_ms, low_ms, high_ms, out_of_range, origin, part`` for rows of a ``sweep`` table.

        ``part`` is the part that answered (for gradients: that of forward kernels). ``origin`` names the other device that this
        part was trained on; it is empty if there is none. On a GPU no prediction is faster than the stated peak rate. Raises
        InputError for a family or pass that the model was not trained on.
        """
        row = features.columns(table)
        names = self._names(row, table["pass"].to_numpy(str))
        predicted, widths, outside, origin = self._answers(row, names)
        if self.chip is not None:
            predicted = np.maximum(predicted, cudnn.least_ms(row, self.chip))
        return pd.DataFrame({"predicted_ms": predicted, "low_ms": predicted * np.exp(-widths),
                             "high_ms": predicted * np.exp(widths), "out_of_range": outside, "origin": origin,
                             "part": [self.answering(name) for name in names.tolist()]}, index=table.index)

    def _names(self, row: Row, passes: np.ndarray) -> np.ndarray:
        """Return for each row the name of the part for its group and pass."""
        return np.char.add(np.char.add(inputs.groups(row, self.chip).astype(str), " "), passes)

    def _answers(self, row: Row, names: np.ndarray) -> PartAnswer:
        """Answer for columns of any parts, by their names."""
        if self.chip is not None:  # a GPU's model that has no part for backward kernels
            backward = np.char.endswith(names, "backward") & ~np.isin(names, list(self.parts)) & np.isin(row.op, CONVOLUTIONS)
            names = np.where(backward, _GRADIENTS, names)
        answers = [np.empty(len(names), kind) for kind in (float, float, bool, object)]
        for name in np.unique(names):
            places = names == name
            of_part = self._of_gradients(row.at(places)) if name == _GRADIENTS else self._answer(str(name), row.at(places))
            for answer, values in zip(answers, of_part, strict=True):
                answer[places] = values
        return answers

    def _of_gradients(self, row: Row) -> PartAnswer:
        """Answer for columns of convolutions' backward passes, from forward kernels."""
        count = len(row.op)
        predicted, weighed, origin = np.zeros(count), np.zeros(count), np.full(count, "", object)
        for name, places, ms, values, widths, device in self.gradients(row):
            scaled = boards.shipped().gradient_ms(name, ms, values)
            predicted[places] += scaled
            weighed[places] += scaled * widths
            origin[places] = np.where(device == "", _GRADIENTS, device)
        return [predicted, weighed / predicted, np.ones(count, bool), origin]

    def gradients(self, row: Row) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield name, indices, ms of the forward kernel in its place, ``gradients.features``, half interval, origin of each."""
        for name, places, kernel in gradients.as_forward_kernels(row, self.chip):
            itself = Row({**row.at(places), "flops": kernel.flops})
            (ms, widths, _, device), (forward_ms, *_) = (
                self._answers(shape, self._names(shape, np.full(len(places), "forward"))) for shape in (kernel, itself))
            yield name, places, ms, gradients.features(itself, np.log(forward_ms / ms)), widths, device

    def _answer(self, name: str, row: Row) -> PartAnswer:
        """Answer for rows of one part, all of one origin."""
        answering = self.answering(name)
        part = self.parts[answering]
        origin = part.origin or ("" if answering == name else f"its {answering}")
        arrays = inputs.arrays(row, answering.partition(" ")[0], self.chip)
        predicted, widths, outside = part.predict(*arrays, (row.flops, row.bytes))
        return [predicted, widths, outside | bool(origin) | ~np.isin(inputs.codes(row), part.codes), origin]

    def answering(self, name: str) -> str:
        """Return the part that answers for ``name``; InputError lists the parts where none does.

        On a GPU without a backward part, the forward part answers, by FLOPs and bytes (convolutions: see ``gradients``).
        Without a convolution part, the GEMM part answers: libraries compute convolutions as GEMMs.
        """
        candidates = [name]
        if self.chip is not None:
            group = name.partition(" ")[0]
            candidates += [f"{group} forward", *([f"{gemm_group(self.chip)} forward"] if group == "convolution" else [])]
        for candidate in candidates:
            if candidate in self.parts:
                return candidate
        raise InputError(f"the model of {self.device} was not trained on {name}; it has: {choices(self.parts)}")

    def on(self, vendor: VendorDevice, dtype: str) -> "CostModel":
        """Return this model of GPUs applied to another one, of which only the vendor's ceilings are known."""
        facts = {**self.facts, "hardware_id": f"vendor:{vendor.id}", "dtype": dtype,
                 "peak_gflops": vendor.peak_gflops[dtype], "peak_gbps": vendor.peak_gbps}
        origin = self.device if self.facts.get("dtype", dtype) == dtype else f"{self.device} {self.facts['dtype']}"
        return CostModel(vendor.id, facts, {name: replace(part, origin=origin) for name, part in self.parts.items()},
                         Chip.of(vendor, dtype))

    @property
    def was_measured_elsewhere(self) -> bool:
        """Return whether a GPU's kernels were measured by others, on their boards and hosts, or are those of other GPUs."""
        return self.facts.get("hardware_id", "").partition(":")[0] in ("vendor", "published")

    def is_of(self, hardware_id: str, threads: int) -> bool:
        """Return whether a CPU's model answers for this hardware and thread count; one without a count answers for any."""
        return self.facts.get("hardware_id") == hardware_id and self.facts.get("threads") in (None, threads)

    def borrowed(self, **facts) -> "CostModel":
        """Return this model for another device, of which only ``facts`` are known: each part names its origin."""
        parts = {name: replace(part, origin=part.origin or self.device) for name, part in self.parts.items()}
        return replace(self, facts={**self.facts, "sweeps": [], **facts}, parts=parts)

    def scaled(self, scaling: Scaling, of_gemms: Scaling, first_touch_ms_per_mb: float | None = None, **facts) -> "CostModel":
        """Return this model of a CPU for another one, see ``borrowed``; GEMMs and attention have a scaling of their own.

        Page-fault cost scales with first-touch time if both CPUs measured it. If only the other CPU did, its first-touch time
        is used. Otherwise the cost scales with bandwidth.
        """
        before = self.facts.get("first_touch_ms_per_mb")

        def fresh(rate: float) -> float:
            if not (rate and first_touch_ms_per_mb):
                return rate / scaling.memory
            return rate * first_touch_ms_per_mb / before if before else first_touch_ms_per_mb

        model = self.borrowed(**facts, first_touch_ms_per_mb=first_touch_ms_per_mb)
        parts = {name: replace(part, scaling=(of_gemms if name.startswith(_GEMMS) else scaling).after(part.scaling))
                 for name, part in model.parts.items()}
        compositions = {case: replace(fitted, rates={**fitted.rates, "fresh_mb": fresh(fitted.rates["fresh_mb"])})
                        for case, fitted in self.compositions.items()}
        return replace(model, parts=parts, compositions=compositions, scaling=scaling)

    @classmethod
    def load(cls, path: Path) -> "CostModel":
        """Read a model back; InputError says what is wrong with a damaged file or one of another schema. Runs no code."""
        model = super().load(path)
        for name, part in model.parts.items():
            try:
                terms, x = model.names_of(name)
                require(part.regressor.terms == terms and part.features in (x, []),  # one of rates alone has no features
                        "it has other terms or features than this program makes of operators")
            except ValueError as error:
                raise InputError(f"{path} is no {cls.FORMAT.noun} of this program: {name}: {error}") from None
        return model

    def names_of(self, name: str) -> list[list[str]]:
        """Return the names of the terms and of the features of one part; ValueError where there is no such part."""
        return inputs.names(name, _ANY_CHIP if self.device == ANY_GPU else self.chip)
