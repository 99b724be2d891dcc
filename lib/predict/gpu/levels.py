"""How a network runs on a GPU, and the levels that its weights are summed over, from what all GPUs share to one board.

The weights of a condition are those of all GPUs in its element size, the root, plus an offset of each
level that applies and was learned: way to run, layout, architecture, device, who measured. A condition
that no data covers is thereby answered from the levels above it.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from lib.config.definitions import VendorDevice
from lib.predict.operators.chip import Chip

PRECISIONS = ("amp_fp16", "amp_bf16", "fp16", "bf16", "fp32", "tf32")
Precision = Literal[PRECISIONS]
ROOT = "bits"  # how the names of roots begin
CALIBRATED = "calibrated"  # the level that a user's own networks teach
# Prior widths of what a level adds, by the first word of its name: to intercepts (and flags), to slopes, to logs of overheads.
WIDTHS = {ROOT: (0.5, 0.2, 1.0), "way": (0.4, 0.12, 0.5), "layout": (0.2, 0.05, 0.3), "architecture": (0.14, 0.04, 0.3),
          "device": (0.1, 0.03, 0.2), "host": (0.1, 0.02, 0.5), "source": (0.5, 0.2, 1.0), CALIBRATED: (0.15, 0.02, 0.4)}
# Sources that ran networks as people do now, for whom answers are. Others timed operators alone, in releases before torch 2,
# or on one machine.
_AS_NOW = ("timm", "KernelBench")
_FULL_W = 3.5  # a multiprocessor at its highest clock: what the RTX 4090 may draw, which its limit hardly holds back


@dataclass(frozen=True, order=True)
class Condition:
    """How a network runs: mode, precision (fp32: torch's default, TF32 in cuDNN's convolutions alone), layout, compiled."""

    mode: Literal["infer", "train"]
    precision: Precision
    layout: Literal["nchw", "nhwc"]
    compiled: bool
    torch: Annotated[str, Field(pattern=r"^[0-9.]*$")] = ""

    @property
    def way(self) -> str:
        """Return eager, compiled or train."""
        return "train" if self.mode == "train" else "compiled" if self.compiled else "eager"

    @property
    def name(self) -> str:
        """Return the condition in one word."""
        return "-".join(filter(None, (self.way, self.precision, self.layout, self.torch)))

    @property
    def is_amp(self) -> bool:
        """Return whether torch.autocast lowers operators to 16 bits."""
        return self.precision.startswith("amp")

    @property
    def bits(self) -> int:
        """Return the bits of an element of what the network computes."""
        return 32 if self.precision in ("fp32", "tf32") else 16

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages of rows that run (``rows.STAGES``)."""
        if self.compiled:
            return "always", "compiled"
        casts = ("autocast",) if self.is_amp else ()
        return "always", "eager", *casts, *(("train",) if self.mode == "train" else ())


def levels_of(vendor: VendorDevice, condition: Condition, host: str = "") -> tuple[str, ...]:
    """Return the levels of a condition on a card, its root first, and those of the ``host`` which measured."""
    bits, way = condition.bits, condition.way
    levels = [f"{ROOT}:{bits}", f"way:{way}:{bits}", f"architecture:{vendor.architecture}:{bits}", f"device:{vendor.id}:{bits}",
              f"device:{vendor.id}:{bits}:{way}"]
    if condition.layout == "nhwc":
        levels.append(f"layout:nhwc:{way}:{bits}")
    return (*levels, *_of_source(host, bits)) if host else tuple(levels)


def _of_source(host: str, bits: int) -> list[str]:
    """Return the levels that answers do not have: of how a source measured, unless as people run networks now, and its host."""
    source = host.partition(",")[0]
    of_host = f"host:{host}:{bits}"
    return [of_host] if source in _AS_NOW else [f"source:{source}:{bits}", of_host]


def chip_of(vendor: VendorDevice, condition: Condition, tf32: bool = True) -> Chip:
    """Return a card's rates in a condition; ``tf32``: cuDNN's convolutions may compute in it.

    An element type that the vendor states no rate of is computed in fp32. In 16 bits the rates are lower where the power
    limit lowers the clock: power grows with the clock and the square of the voltage, and this with the clock, P ~ f^3 (Mudge,
    Computer 34(4), 2001). Raises InputError where the vendor does not state multiprocessors.
    """
    dtype = condition.precision.removeprefix("amp_")
    dtype = dtype if dtype in vendor.peak_gflops else "fp32"
    chip = replace(Chip.of(vendor, dtype), item=condition.bits // 8)
    if dtype == "fp32" and tf32 and "tf32" in vendor.peak_gflops:
        chip = replace(chip, convolution_flops_per_ms=vendor.peak_gflops["tf32"] * 1e6)
    share = 1.0
    if condition.bits < 32 and vendor.power_w:  # noqa: PLR2004 - bits
        share = min(1.0, vendor.power_w / vendor.multiprocessors / _FULL_W) ** (1 / 3)
    names = ("flops_per_ms", "vector_flops_per_ms", "convolution_flops_per_ms", "bytes_per_ms")
    return replace(chip, **{name: getattr(chip, name) * share for name in names})
