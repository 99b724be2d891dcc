"""The model of GPUs: the weights of all levels, its file (checked JSON, never code), and what it predicts of a network."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from lib import files, paths
from lib.config.definitions import VendorDevice
from lib.predict.gpu import features, form
from lib.predict.gpu.kinds import COMPUTING, CONVOLVING, KERNEL_KINDS
from lib.predict.gpu.levels import ROOT, Condition, chip_of, levels_of
from lib.predict.model_file import Count, Device, Format, NotNegative, Saved, array, require

PATH = paths.REFERENCE / "models" / "gpu.json"
MEASURED, NEW = "measured card", "new card"  # scopes of errors: was the card measured in this element size?
GROUPS = ("launches", "recurrent", "rare convolutions", "convolutions", "products", "memory")  # by what takes most time
_PRODUCTS = ("linear", "bmm", "attention")
_RARE_KINDS = ("conv_depthwise", "conv_grouped")
RETRAIN = "train it again with: python -m lib models --train gpu"


@dataclass(frozen=True)
class Prediction:
    """Predicted ms of a pass on a GPU and half its 90 % range in log time; kernels and launches, which overlap, in ms.

    ``roof_ms``: of the kernels at the stated peaks, one after another; ``least_ms``: of the matrix products alone;
    ``kinds_ms``: of kernels, by kind; ``group``: of GROUPS; ``scope``: MEASURED or NEW; ``calibrated``: by how many networks.
    """

    predicted_ms: float
    half: float
    kernels_ms: float
    launches_ms: float
    roof_ms: float
    least_ms: float
    kinds_ms: Mapping[str, float]
    group: str
    scope: str
    calibrated: int = 0

    @property
    def times(self) -> dict[str, float]:
        """Return predicted, low and high ms by their names."""
        width = math.exp(self.half)
        return {"predicted_ms": self.predicted_ms, "low_ms": self.predicted_ms / width, "high_ms": self.predicted_ms * width}


@dataclass(frozen=True)
class Calibration(Saved):
    """What a user's own networks on one card add to the weights, half the range that they gave, and how many they were."""

    device: Device
    weights: array(float, file="<f4")
    half: NotNegative
    networks: Count

    FORMAT: ClassVar = Format("calibration of a GPU",
                                      "calibrate again: python -m lib calibrate --device DEVICE --networks FILE")

    def __post_init__(self):
        """Refuse weights of another number."""
        require(self.weights.shape == (form.SIZE,), f"has {self.weights.shape} weights, not {form.SIZE}")


@dataclass(frozen=True)
class GpuModel(Saved):
    """Weights by level (``levels``), half widths of 90 % ranges in log time by ``interval_keys``, and the sources.

    ``sources``: who measured, with the licence of each.
    """

    levels: dict[str, array(float, file="<f4")]
    intervals: dict[str, NotNegative]
    sources: dict[str, str]

    FORMAT: ClassVar = Format("model of GPUs", RETRAIN)

    def __post_init__(self):
        """Refuse weights of another number, and a file without the level of all GPUs."""
        require({f"{ROOT}:32", f"{ROOT}:16"} <= set(self.levels), "has no weights that all GPUs share")
        require(all(weights.shape == (form.SIZE,) for weights in self.levels.values()), f"has other than {form.SIZE} weights")

    def scope(self, vendor: VendorDevice, condition: Condition) -> str:
        """Return whether a card was measured in the element size of a condition."""
        return MEASURED if f"device:{vendor.id}:{condition.bits}" in self.levels else NEW

    def weights(self, vendor: VendorDevice, condition: Condition, calibration: Calibration | None = None) -> np.ndarray:
        """Return the weights of a condition on a card: the sum of its levels."""
        known = [self.levels[level] for level in levels_of(vendor, condition) if level in self.levels]
        return sum([*known, *([calibration.weights] if calibration else [])])

    def predict(self, vendor: VendorDevice, condition: Condition, rows: pd.DataFrame, times: float,
                host_us: float = 0.0, calibration: Calibration | None = None) -> Prediction:
        """Predict a pass of a network (``gpu.rows``) at ``times`` the captured batch.

        ``host_us``: the microseconds that the host takes to launch an operator, 0: those of a usual host.
        """
        terms = features.terms(rows, times, chip_of(vendor, condition), condition)
        weights = self.weights(vendor, condition, calibration).copy()
        if host_us:
            weights[-len(form.OVERHEADS)] = math.log(host_us / 1e3)
        weights = torch.as_tensor(weights)[None]
        row_ms = form.kernels_ms(terms, weights).numpy()
        kernels_ms, launches_ms = (float(part) for part in form.both_ms(terms, weights))
        soft_ms = (kernels_ms ** form.OVERLAP + launches_ms ** form.OVERLAP) ** (1 / form.OVERLAP)
        least_ms = _products_at_peak_ms(terms)
        predicted_ms = max(soft_ms, least_ms)
        (group,), scope = groups_of(terms, row_ms, np.array([launches_ms])), self.scope(vendor, condition)
        half = calibration.half if calibration else self.half(scope, condition, group)
        kinds = np.bincount(terms.kind.numpy(), row_ms, len(KERNEL_KINDS))
        return Prediction(predicted_ms, half, kernels_ms, launches_ms, _roof_ms(terms), least_ms,
                          dict(zip(KERNEL_KINDS, kinds.tolist(), strict=True)), group, scope,
                          calibration.networks if calibration else 0)

    def half(self, scope: str, condition: Condition, group: str) -> float:
        """Return half the 90 % range in log time of what is like a question, of the finest class with enough labels."""
        return next(self.intervals[key] for key in interval_keys(scope, condition.way, condition.bits, group)
                    if key in self.intervals)


def _roof_ms(terms: features.Terms) -> float:
    compute_ms = torch.zeros_like(terms.move_ms).index_add(0, terms.computes, terms.compute_ms)
    return float((torch.maximum(compute_ms, terms.move_ms) * terms.calls).sum())


def _products_at_peak_ms(terms: features.Terms) -> float:
    """Return the ms that matrix products take at the stated peak; convolutions may compute fewer FLOPs than are counted."""
    kinds = np.array(KERNEL_KINDS)[terms.kind[terms.computes].numpy()]
    return float((terms.compute_ms * terms.calls[terms.computes]).numpy()[np.isin(kinds, _PRODUCTS)].sum())


def interval_keys(scope: str, way: str, bits: int, group: str) -> tuple[str, ...]:
    """Return the classes of questions that have a range of their own, from the finest to the widest."""
    return f"{scope}, {way}, {bits} bits, {group}", f"{scope}, {way}, {group}", f"{scope}, {group}", scope


def groups_of(terms: features.Terms, row_ms: np.ndarray, launches_ms: np.ndarray) -> list[str]:
    """Return of each network which of GROUPS takes most of its time."""
    names = np.array(KERNEL_KINDS)[terms.kind.numpy()]
    is_rare = np.zeros(len(names), bool)
    flags = [features.COMPUTING_FEATURES.index(name) for name in features.CLASSES]
    is_rare[terms.computes.numpy()] = (terms.computing[:, flags] > 0).any(1).numpy()
    convolves = np.isin(names, CONVOLVING)
    place = np.select([names == "recurrent", np.isin(names, _RARE_KINDS) | (is_rare & convolves), convolves,
                       np.isin(names, COMPUTING)], range(1, len(GROUPS) - 1), len(GROUPS) - 1)
    count = len(launches_ms)
    ms = np.bincount(terms.network.numpy() * len(GROUPS) + place, row_ms, count * len(GROUPS)).reshape(count, len(GROUPS))
    largest = np.where(launches_ms > ms.sum(1), 0, ms.argmax(1))
    return [GROUPS[number] for number in largest]


_load = files.until_changed(GpuModel.load)


def shipped() -> GpuModel:
    """Return the model that ships; InputError where it is missing or damaged."""
    return _load(PATH) if PATH.is_file() else GpuModel.load(PATH)


def calibration_path(device: str) -> Path:
    """Return the file of a card's calibration on this machine."""
    return paths.MODELS / "gpu" / f"{device}.json"


def calibration_of(device: str) -> Calibration | None:
    """Return the calibration of a card on this machine, None without one; InputError for a damaged file."""
    path = calibration_path(device)
    return Calibration.load(path) if path.is_file() else None
