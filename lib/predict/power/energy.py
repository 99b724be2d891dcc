"""Watts and joules of work on a GPU, and its time at another clock, from energies per operation.

A board draws static power, power of its clocked multiprocessors, and energy for each FLOP and each
byte. All but static power and memory fall with the square of the voltage, which follows the clock
down to a floor. One set of numbers holds for all boards: they scale with what the vendor states.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from lib import paths
from lib.config.definitions import VendorDevice, load_devices
from lib.predict.analytic import roofline
from lib.predict.model_file import Format, Positive, Saved
from lib.predict.networks.composition import Estimate
from lib.predict.networks.sums import OVERLAP
from lib.predict.networks.work import Work
from lib.predict.operators.chip import YEARLY, YEARS

PATH = paths.REFERENCE / "models" / "power" / "energy.json"
COLUMNS = ("energy_j", "energy_low_j", "energy_high_j")
QUANTITIES, ENDS = ("energy", "time"), {"": 0, "_low": -1, "_high": 1}
RATIOS = tuple(f"{name}_ratio{end}" for name in QUANTITIES for end in ENDS)
# over HBM2's 3.9 pJ (O'Connor et al., MICRO 2017); GDDR6's 7.5 pJ is Micron's
ENERGY_PER_BIT = {"hbm": 1.0, "gddr": 7.5 / 3.9}
TERMS = ("static_w", "multiprocessor_w_per_ghz", "pj_per_flop_16_bits", "pj_per_flop_32_bits",
         "pj_per_bit")
_FOLLOWS_VOLTAGE = np.array([False, True, True, True, False])  # of TERMS
_YEAR = 2020  # of the energies per FLOP; other years' fall as in chip.YEARLY
_REACHED, _SHARPNESS = 0.93, 8  # boards settle at 0.8 to 0.97 of their power limit: a soft minimum
_OTHER_GENERATIONS = 0.38  # log watts: holds 90 % of 17,001 published GEMMs on an H200, of whose
#   generation the model saw no card (benchmarks/gemm_power.py)
_LEAST_CLOCK, _HALVINGS = 0.35, 12  # of the search for the clock that a power limit leaves: base
#   clocks, which vendors promise under load, are a third of boost clocks or more
_ENDS_MS, _LEAST_MS = ("predicted_ms", "low_ms", "high_ms"), 1e-6
_MOST_CLOCK = 1.1  # times the boost clock: cards of board partners are clocked higher


@dataclass(frozen=True)
class Load:
    """What a pass asks of a GPU.

    Args:
        flops, bytes: of all operators; bytes as each operator reads and writes once.
        memory_share: of the roofline time, of operators that memory bounds.
        passes_ms: predicted time without a stated clock.
        launches_ms: of them, what the host needs to launch all kernels.
        dtype: the element type of most FLOPs.
    """

    flops: float
    bytes: float
    memory_share: float
    passes_ms: float
    launches_ms: float
    dtype: str

    @classmethod
    def of(cls, work: Work, passes: Estimate, predictor: Any) -> "Load":
        """Return the load of predicted passes on a device (``registry.Predictor``)."""
        launches_ms = passes.launches_ms
        if launches_ms is None:
            launches_ms = predictor.launches_ms(work)
        memory_share = roofline.memory_share(work.flops_and_bytes, predictor.roof)
        return cls(work.flops, work.bytes, memory_share, passes.predicted_ms, launches_ms,
                   predictor.dtype)


def refusal(device: str, clock_mhz: float) -> str:
    """Return why a device does not take a clock, or why nobody knows; empty if it does."""
    card = load_devices().get(device)
    if card is None or not card.boost_mhz:
        return f"{device} has no known clock; those of GPUs are boost_mhz of params/devices.yaml"
    if 0 < clock_mhz <= _MOST_CLOCK * card.boost_mhz:
        return ""
    return (f"{device} takes clocks of 1 to {_MOST_CLOCK * card.boost_mhz:.0f} MHz "
            f"({_MOST_CLOCK:g} times its boost clock, {card.boost_mhz:g}), not {clock_mhz:g} MHz")


def terms(load: Load, card: VendorDevice, time_ms: float, share: float = 1.0) -> np.ndarray:
    """Return what each of TERMS multiplies in the watts of a load, at the boost clock's voltage.

    ``time_ms``: of the pass; its FLOPs and bytes per ms are at most those that the vendor states.
    ``share``: the clock over the boost clock.
    """
    gflops = min(load.flops / time_ms / 1e6, card.peak_gflops[load.dtype] * max(share, 1.0))
    gbps = min(load.bytes / time_ms / 1e6, card.peak_gbps)
    flops_w = gflops * 1e-3 * YEARLY ** (YEARS[card.architecture] - _YEAR)
    is_wide = load.dtype == "fp32"
    return np.array([1.0, card.multiprocessors * card.boost_mhz * 1e-3 * share,
                     0.0 if is_wide else flops_w, flops_w if is_wide else 0.0,
                     gbps * 8e-3 * ENERGY_PER_BIT[card.memory]])


def is_known(device: str) -> bool:
    """Return whether the vendor states all that the watts of a device depend on."""
    card = load_devices().get(device)
    return card is not None and card.architecture in YEARS and \
        bool(card.power_w and card.boost_mhz and card.multiprocessors)


@dataclass(frozen=True)
class PowerModel(Saved):
    """The model of all boards.

    ``rates`` of TERMS, at the voltage of the boost clock; ``voltage_floor``: the lowest voltage
    over that one. ``clocked``: the share of kernels' time that follows the clock, of compute-bound
    and memory-bound work. ``halves`` of intervals in logs: of ``power`` on other cards of the
    ``architectures`` that taught it, and of ``time`` and ``energy`` per unit of the log of the
    clock's share.
    """

    rates: dict[Literal[*TERMS], Positive]
    voltage_floor: Positive
    clocked: dict[Literal["compute", "memory"], Positive]
    halves: dict[Literal["power", "time", "energy"], Positive]
    architectures: tuple[str, ...]
    source: str
    licence: str

    FORMAT: ClassVar = Format("model of power",
                              "train it: python -m lib models --train power --labels FOLDER")

    def watts(self, load: Load, device: str, time_ms: float, share: float = 1.0) -> float:
        """Predict the mean watts of a device, see ``terms``."""
        drawn = self._drawn_w(load, device, time_ms, share)
        return float(limited_w(drawn, load_devices()[device].power_w))

    def _drawn_w(self, load: Load, device: str, time_ms: float, share: float) -> float:
        rates = np.array([self.rates[name] for name in TERMS])
        parts = terms(load, load_devices()[device], time_ms, share)
        return float(drawn_w(rates, self.voltage_floor, parts, share))

    def at_clock(self, load: Load, device: str, clock_mhz: float) -> tuple[float, float]:
        """Return the share of the boost clock that a device runs at, and the factor of the time.

        Without a clock the device runs at its boost clock, or as fast as its power limit allows: a
        higher clock changes nothing.
        """
        share = clock_mhz / load_devices()[device].boost_mhz
        usual = self.usual_share(load, device)
        if usual < 1:
            share = min(share, usual)
        return share, self.slowdown(load, share) / self.slowdown(load, usual)

    def slowdown(self, load: Load, share: float) -> float:
        """Return the time at a clock over that at the boost clock, see ``slowdown``."""
        compute, memory = self.clocked["compute"], self.clocked["memory"]
        return float(slowdown((compute, memory), load.memory_share, launch_share(load), share))

    def usual_share(self, load: Load, device: str) -> float:
        """Return the share of the boost clock at which a load draws what the device may draw."""
        if not is_known(device):
            return 1.0
        low, high = _LEAST_CLOCK, 1.0
        if self._drawn_w(load, device, load.passes_ms, high) <= load_devices()[device].power_w:
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            time_ms = load.passes_ms * self.slowdown(load, middle)
            if self._drawn_w(load, device, time_ms, middle) > load_devices()[device].power_w:
                high = middle
            else:
                low = middle
        return low

    def ratios(self, load: Load, device: str, clock_mhz: float) -> dict[str, float]:
        """Return what a clock changes (RATIOS) against none."""
        usual = self.usual_share(load, device)
        share, time = self.at_clock(load, device, clock_mhz)
        energy = math.nan
        if is_known(device):
            energy = time * self.watts(load, device, load.passes_ms * time, share) \
                / self.watts(load, device, load.passes_ms, usual)
        halves = {name: self.halves[name] * abs(math.log(share / usual)) for name in QUANTITIES}
        return {"clock_mhz": clock_mhz} | with_ranges({"energy": energy, "time": time}, halves)

    def per_sample(self, load: Load, device: str, times: Mapping[str, float], batch_size: int,
                   clock_mhz: float = 0) -> dict[str, float]:
        """Predict the joules per sample of the board; NaN where ``is_known`` does not hold.

        Args:
            load: of the passes.
            device: a device of params/devices.yaml; others have no stated power.
            times: ``predicted_ms``, ``low_ms`` and ``high_ms`` of all that the board waits for.
            batch_size: samples per board.
            clock_mhz: 0: none is stated.
        """
        if not is_known(device):
            return dict.fromkeys(COLUMNS, math.nan)
        card = load_devices()[device]
        share = self.at_clock(load, device, clock_mhz)[0] if clock_mhz \
            else self.usual_share(load, device)
        half = self.halves["power"] if card.architecture in self.architectures \
            else max(self.halves["power"], _OTHER_GENERATIONS)
        usual, low, high = (
            self.watts(load, device, time_ms, share) * time_ms / 1e3 / batch_size
            for time_ms in (max(times[name], _LEAST_MS) for name in _ENDS_MS))
        below, above = (math.exp(math.hypot(half, math.log(end / usual))) for end in (low, high))
        return dict(zip(COLUMNS, (usual, usual / below, usual * above), strict=True))


@cache
def shipped() -> PowerModel:
    """Return the model that ships."""
    return PowerModel.load(PATH)


def with_ranges(factors: Mapping[str, float], halves: Mapping[str, float]) -> dict[str, float]:
    """Return factors of QUANTITIES with intervals, whose halves are stated in logs (RATIOS)."""
    return {f"{name}_ratio{end}": float(factor * math.exp(sign * halves[name]))
            for name, factor in factors.items() for end, sign in ENDS.items()}


def drawn_w(rates, voltage_floor, terms_, share):
    """Return the watts that work would draw without any limit, of one load or rows of ``terms``."""
    voltage = np.maximum(voltage_floor, share)
    return np.where(_FOLLOWS_VOLTAGE, np.square(voltage)[..., None], 1.0) * terms_ @ rates


def limited_w(drawn, limit_w):
    """Return the watts that are left of ``drawn_w`` under the board's power limit."""
    return (drawn ** -_SHARPNESS + (_REACHED * limit_w) ** -_SHARPNESS) ** (-1 / _SHARPNESS)


def launch_share(load: Load) -> float:
    """Return the time of launches over that of the pass, in which kernels overlap with them."""
    return min(1.0, load.launches_ms / load.passes_ms)


def slowdown(clocked, memory_share, launches, share):
    """Return the factor of time at a clock; numbers or arrays.

    ``clocked``: the share of the time of compute-bound and of memory-bound kernels that follows the
    clock. ``launches``: the share of the host's launches, with which kernels overlap.
    """
    compute, memory = clocked
    follows = np.minimum(1.0, compute * (1 - memory_share) + memory * memory_share)
    kernels = np.maximum(0.0, 1 - launches ** OVERLAP) * (1 + follows * (1 / share - 1)) ** OVERLAP
    return (kernels + launches ** OVERLAP) ** (1 / OVERLAP)
