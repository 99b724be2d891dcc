"""Passes on equal GPUs of one machine: what their exchange and their shared host add to the time of one GPU.

Published all-reduces give the bandwidth that links reach, networks under DataParallel the time of the host. No network was
measured under DistributedDataParallel: its range is assumed to be as wide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from lib import paths
from lib.config import definitions
from lib.predict.model_file import Format, NotNegative, Positive, Saved
from lib.predict.networks.composition import Estimate
from lib.predict.networks.work import Work
from lib.predict.scores import half_interval
from lib.work.run_config import DATA_PARALLEL, DDP

PATH = paths.REFERENCE / "models" / "parallel.json"
GPUS = range(1, 17)
ENDS = ("predicted_ms", "low_ms", "high_ms")
SIZES = ("weights_mb", "gradients_mb", "input_mb")
TERMS = (*SIZES, "forward_operators")
_BUCKET_MB = 26.2  # of gradients that torch's DistributedDataParallel sends together
_BACKWARD = 2 / 3  # share of a training step's passes


@dataclass(frozen=True)
class Costs(Saved):
    """What GPUs that work together cost.

    ``efficiency``: the share of a link's stated bandwidth that is reached; ``spread``: of hosts about it, in log.
    ``latency_ms``: of one step round the ring. ``host_ms``: by mode, of an operator of the forward pass, for each GPU and once
    more. ``half``: half the interval of DataParallel in log time, from the networks that ``host_ms`` is fitted to.
    """

    efficiency: Positive
    spread: NotNegative
    latency_ms: NotNegative
    host_ms: dict[str, NotNegative]
    half: NotNegative
    source: str = ""

    FORMAT: ClassVar = Format("costs of parallel GPUs", "compute it again with: python -m lib models --outsiders FOLDER --ship")


def all_reduce_ms(mb: Any, terms: Mapping[str, Any], costs: Costs) -> Any:
    """Return the ms of all-reduces in a ring of GPUs, by buckets; its 2 (n - 1) steps carry a share of 1/n each."""
    step_ms = costs.latency_ms * np.ceil(mb / _BUCKET_MB) + mb / terms["gpus"] / terms["gbps"] / costs.efficiency
    return 2 * (terms["gpus"] - 1) * step_ms


def _ddp_ms(passes_ms, terms: Mapping[str, Any], costs: Costs):
    """Return passes and the exchange that the backward pass does not hide: its excess, and the last bucket."""
    last_mb = np.minimum(terms["gradients_mb"], _BUCKET_MB)
    excess_ms = all_reduce_ms(terms["gradients_mb"] - last_mb, terms, costs) - passes_ms * _BACKWARD
    return passes_ms + np.maximum(excess_ms, 0) + all_reduce_ms(last_mb, terms, costs)


def _data_parallel_ms(passes_ms, terms: Mapping[str, Any], costs: Costs):
    """Return passes with weights and inputs to each GPU and gradients back, while one process launches all kernels."""
    moved_ms = (terms["weights_mb"] + terms["gradients_mb"]) / terms["gbps"] / costs.efficiency
    return np.hypot(passes_ms + moved_ms, np.asarray(pd.Series(costs.host_ms)[terms["mode"]]) * _launches(terms))


def _launches(terms: Mapping[str, Any]):
    return terms["forward_operators"] * (terms["gpus"] + 1)


class Scheme(NamedTuple):
    """How GPUs share a batch: ms of passes, on how many GPUs networks were measured so, words of a training step."""

    passes_ms: Callable[..., Any]
    measured_gpus: int
    words: str


SCHEMES = {DDP: Scheme(_ddp_ms, 1, "DDP, all-reduce of {:,.0f} MB overlaps the backward pass"),
           DATA_PARALLEL: Scheme(_data_parallel_ms, 4, "DataParallel, one process launches all kernels")}


def times(scheme: str, passes: Mapping[str, Any], terms: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """Return ENDS of passes on many GPUs from those on one; numbers or columns.

    ``terms``: mode, gpus, gbps (stated) and TERMS.
    """
    ms, low, high = (SCHEMES[scheme].passes_ms(passes[end], terms, replace(costs, efficiency=share * costs.efficiency))
                     for end, share in zip(ENDS, np.exp([0.0, costs.spread, -costs.spread]), strict=True))
    below, above = (np.exp(np.hypot(np.log(end / ms), costs.half)) for end in (low, high))
    return dict(zip(ENDS, (ms, ms / below, ms * above), strict=True))


def terms_of(work: Work) -> dict[str, float]:
    """Return TERMS of the passes of each GPU; ``weights_mb`` includes the inputs."""
    sizes = (work.weight_bytes, sum(work.trained) * 4, work.input_values * 4)
    return dict(zip(TERMS, (*(size / 1e6 for size in sizes), work.modules), strict=True))


def estimate(passes: Estimate, work: Work, device: str, gpus: int, scheme: str) -> Estimate:
    """Return the passes of each GPU of ``gpus`` that work together (``work``: of one), their interval and ``parallel_ms``."""
    terms = {"mode": work.mode, "gpus": gpus, "gbps": definitions.vendor_device(device).link_gbps, **terms_of(work)}
    ends = {end: float(ms) for end, ms in times(scheme, passes.times, terms, shipped()).items()}
    return replace(passes, **ends, parallel_ms=ends["predicted_ms"] - passes.predicted_ms)


def shipped() -> Costs:
    """Return the costs that ship."""
    return Costs.load(PATH)


def learn(links: pd.DataFrame, networks: pd.DataFrame) -> Costs | None:
    """Learn from all-reduces (``links``) and from networks under DataParallel; None if either is missing.

    ``links``: device, gpus, gbps, mb, measured_ms. ``networks``: terms of ``times``, passes_ms, and alone_ms of one GPU. Both
    have a licence. ``efficiency``: geometric mean over hosts. ``host_ms``: the median that reproduces the times.
    """
    if links.empty or networks.empty:
        return None
    bare = Costs(1.0, 0.0, 0.0, dict.fromkeys(networks["mode"], 0.0), 0.0)
    ideal_ms, small = all_reduce_ms(links["mb"], links, bare), links["mb"] == links["mb"].min()
    shares = np.log((ideal_ms / links["measured_ms"])[links["mb"] > _BUCKET_MB].groupby(links["device"]).median())
    late_ms = (links["measured_ms"] - ideal_ms / np.exp(links["device"].map(shares))) / (links["gpus"] - 1) / 2
    bare = replace(bare, efficiency=float(np.exp(shares.mean())), spread=float((shares - shares.mean()).abs().max()),
                   latency_ms=max(0.0, float(late_ms[small].median())))
    alone_ms, passes_ms = networks["alone_ms"], networks["passes_ms"]
    host_ms = np.sqrt(np.maximum(passes_ms ** 2 - _data_parallel_ms(alone_ms, networks, bare) ** 2, 0)) / _launches(networks)
    costs = replace(bare, host_ms=host_ms.groupby(networks["mode"]).median().to_dict())
    return replace(costs, half=half_interval(np.log(passes_ms / _data_parallel_ms(alone_ms, networks, costs))),
                   source="; ".join(sorted({*links["licence"], *networks["licence"]})))
