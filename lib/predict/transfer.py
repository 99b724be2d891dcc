"""Completes the model of a GPU for kernels that were not measured on it: from siblings, else any GPU, else the roofline.

Parts carry over because GPU features are relative to a chip's ceilings; each part names the device that it was trained on.
Times with and without the launch are never mixed. Only one number passes between them: the share of bandwidth that memory-bound
kernels reach. The launch time is that of the model at hand.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.config.definitions import VendorDevice, load_devices
from lib.predict.operators.cost_model import ANY_GPU, PARTS_NOT_LENT, CostModel
from lib.predict.operators.features_gpu import MOVING
from lib.predict.operators.parts import Part
from lib.predict.operators.regressors import Rates

ANALYTIC = "the roofline"  # origin of kernels that no published data cover on any GPU
_ALIKE = {"bf16": ("bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32")}  # stand-ins, best first
_UNMEASURED = math.log(3)  # half interval of windows: depthwise kernels reach a third to all of their ideal rate
_MEMORY, _WINDOW = "memory forward", "window forward"
Files = Mapping[tuple[str, str], Path]


def gpu_model(vendor: VendorDevice, dtype: str, files: Files, load: Callable[[Path], CostModel]) -> CostModel | None:
    """Return the model of a GPU and element type, completed from ``files``; None without a donor."""
    donors = [load(files[device, alike]) for alike in _ALIKE.get(dtype, (dtype,))  # the nearest first
              for device in (vendor.id, *siblings(vendor), ANY_GPU) if (device, alike) in files]
    if not donors:
        return None
    first = donors[0]
    is_own = (first.device, first.facts["dtype"]) == (vendor.id, dtype)
    model = replace(first if is_own else first.on(vendor, dtype), parts=dict(first.parts) if is_own else {})
    for donor in donors:
        if donor.facts["latency_type"] == model.facts["latency_type"]:
            for name, part in _borrowed(donor, vendor, dtype, donors).items():
                model.parts.setdefault(name, part)
    rated = next((donor for donor in donors if _MEMORY in donor.parts), None)
    if _MEMORY not in model.parts and rated:
        memory = _borrowed(rated, vendor, dtype, donors)[_MEMORY]
        model.parts[_MEMORY] = _rates(memory, model.facts["launch_ms"])
    if _MEMORY in model.parts:
        model.parts[_WINDOW] = _window(model.parts[_MEMORY])
    return model


def siblings(vendor: VendorDevice) -> list[str]:
    """Return the ids of other chips of the same architecture, the nearest in bandwidth and multiprocessors first."""
    def distance(other: VendorDevice) -> float:
        return abs(math.log(other.peak_gbps / vendor.peak_gbps)) + abs(math.log(other.multiprocessors / vendor.multiprocessors))

    same = [other for other in load_devices().values() if other.architecture == vendor.architecture != ""
            and other.id != vendor.id and other.multiprocessors]
    return [other.id for other in sorted(same, key=distance)]


def _borrowed(donor: CostModel, vendor: VendorDevice, dtype: str, donors: Sequence[CostModel]) -> dict[str, Part]:
    """Return a donor's parts applied to a GPU, with the scores of any-GPU, which are of GPUs left out.

    A sibling's own scores are of its unseen shapes. A donor of the same GPU in another element type keeps its scores. GEMMs in
    fp32 of a throttled card are not borrowed.
    """
    parts = donor.on(vendor, dtype).parts
    if donor.device == vendor.id:
        return parts
    of_any = (ANY_GPU, donor.facts["dtype"])
    left_out = next((other.parts for other in donors if (other.device, other.facts["dtype"]) == of_any), {})
    return {name: replace(part, scores=left_out[name].scores if name in left_out else {}) for name, part in parts.items()
            if name.partition(" ")[0] not in donor.facts.get(PARTS_NOT_LENT, ())}


def _rates(part: Part, launch_ms: float) -> Part:
    """Return the bandwidth rates of a part that was timed otherwise, with this model's launch."""
    cost = _cost(part)
    costs = {name: value * name.endswith(("_rows", "_blocks")) for name, value in cost.items()}
    costs |= {"call": launch_ms, **{f"{name}_ms": _rate(cost, name) for name in MOVING}}
    return replace(part, regressor=_regressor(costs), features=[], ranges={}, edges_ms=[], halves=[max(part.halves)],
                   families={})


def _window(memory: Part) -> Part:
    """Return the part of depthwise and narrow grouped convolutions and of pooling, for which no GPU data are published.

    They are taken to reach the bandwidth of other memory-bound kernels and to read their windows from the first cache.
    """
    cost = _cost(memory)
    rates = _regressor({"move_ms": _rate(cost, "move"), "read_ms": 1.0, "call": cost["call"]})
    return Part(rates, [], {}, [], 0, halves=[max(_UNMEASURED, *memory.halves)], origin=ANALYTIC)


def _rate(cost: Mapping[str, float], name: str) -> float:
    """Return the time of a large memory-bound kernel over its time at full bandwidth; ``name`` is the kind of traffic.

    No byte is faster than full bandwidth: isolated kernels read part of their bytes from a cache.
    """
    own = (f"{name}_ms", f"{name}_missed_ms")
    return max(1.0, sum(value for term, value in cost.items() if term in own or term.startswith(f"{name}_beyond_")))


def _regressor(costs: Mapping[str, float]) -> Rates:
    return Rates(list(costs), np.array(list(costs.values())))


def _cost(part: Part) -> dict[str, float]:
    """Return the cost of one of each term in ms."""
    return dict(zip(part.regressor.terms, part.regressor.costs, strict=True))
