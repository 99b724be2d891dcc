"""A GPU as its vendor states it."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.predict.model_file import AtLeastOne, NotNegative, Positive
from lib.work import dtypes

_UNSTATED_CACHE_MB = 1.0  # of a device whose entry states none: little stays in it
_PJ_2016, YEARLY = 24.5, 0.8  # energy of a FLOP in fp32; it halves in some three years (Sun et al., arXiv:1911.11313)
_STATIC_W = 20.0  # of a board, whatever it computes
YEARS = {"kepler": 2012, "maxwell": 2014, "pascal": 2016, "volta": 2017, "vega": 2017, "turing": 2018, "ampere": 2020,
          "cdna2": 2021, "ada": 2022, "hopper": 2022, "cdna3": 2023, "blackwell": 2024}


@dataclass(frozen=True)
class Chip:
    """What the model needs to know of a device: rates in FLOP/ms and bytes/ms, multiprocessors, bytes of the last cache.

    ``vector_flops_per_ms`` is the rate of fp32 outside of tensor cores; ``item`` the bytes of an element;
    ``powered_flops_per_ms`` the rate of fp32 that the board's power feeds (0: not known);
    ``convolution_flops_per_ms`` that of cuDNN's convolutions where it differs (TF32).
    """

    flops_per_ms: Positive
    vector_flops_per_ms: Positive
    bytes_per_ms: Positive
    multiprocessors: AtLeastOne
    cache_bytes: NotNegative
    item: Annotated[int, Field(ge=1, le=16)]
    powered_flops_per_ms: NotNegative = 0.0
    convolution_flops_per_ms: NotNegative = 0.0

    @classmethod
    def of(cls, device: VendorDevice, dtype: str) -> "Chip":
        """Take a vendor's device; InputError where it states no rate for ``dtype``, or no multiprocessors."""
        if dtype not in device.peak_gflops or not device.multiprocessors:
            raise InputError(f"params/devices.yaml states no {dtype} rate or no multiprocessors of {device.id}; it states: "
                             f"{choices(device.peak_gflops)}")
        peak = device.peak_gflops[dtype]
        return cls(peak * 1e6, device.peak_gflops.get("fp32", peak) * 1e6, device.peak_gbps * 1e6, device.multiprocessors,
                   (device.cache_mb or _UNSTATED_CACHE_MB) * 1e6, dtypes.torch_dtype(dtype).itemsize, _powered(device))


def _powered(device: VendorDevice) -> float:
    """Return the FLOP/ms of fp32 that a board's power feeds; 0 where its power or the year of its architecture is not known."""
    if not device.power_w or device.architecture not in YEARS:
        return 0.0
    return (device.power_w - _STATIC_W) / (_PJ_2016 * 1e-12 * YEARLY ** (YEARS[device.architecture] - 2016)) / 1e3
