"""Training on equal GPUs of one machine (DistributedDataParallel): the exchange of gradients.

Published all-reduces give the bandwidth that links reach. No network was measured so: the width of
the range is an assumption.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lib import paths
from lib.config import definitions
from lib.predict.model_file import Format, NotNegative, Positive, Saved
from lib.predict.networks.composition import Estimate
from lib.predict.networks.work import Work

PATH = paths.REFERENCE / "models" / "parallel.json"
GPUS = range(1, 17)
DDP = "DDP, all-reduce of {:,.0f} MB overlaps the backward pass; no network was measured so"
_BUCKET_MB = 26.2  # of gradients that torch's DistributedDataParallel sends together
_BACKWARD = 2 / 3  # share of a training step's passes
_HALF = 0.233  # assumed: half the 90 % range in log time that the exchange and the host add


@dataclass(frozen=True)
class Costs(Saved):
    """The cost of an all-reduce.

    ``efficiency``: the share of a link's stated bandwidth that is reached; ``spread``: of hosts
    about it, in log. ``latency_ms``: of one step round the ring.
    """

    efficiency: Positive
    spread: NotNegative
    latency_ms: NotNegative
    source: str = ""

    FORMAT: ClassVar = Format("costs of parallel GPUs", "compute it again with: python -m lib "
                              "models --outsiders FOLDER --ship")


def all_reduce_ms(mb: Any, gpus: Any, gbps: Any, costs: Costs) -> Any:
    """Return the ms of all-reduces in a ring of GPUs, by buckets; numbers or columns.

    Each of the 2 (n - 1) steps of n GPUs carries a share of 1/n.
    """
    step_ms = costs.latency_ms * np.ceil(mb / _BUCKET_MB) + mb / gpus / gbps / costs.efficiency
    return 2 * (gpus - 1) * step_ms


def passes_ms(one_ms: float, gradients_mb: float, gpus: int, gbps: float, costs: Costs) -> float:
    """Return the ms of passes that take ``one_ms`` on one GPU, with the exchange of gradients.

    The backward pass hides what it can; the last bucket is never hidden.
    """
    last_mb = min(gradients_mb, _BUCKET_MB)
    exchange_ms = all_reduce_ms(gradients_mb - last_mb, gpus, gbps, costs)
    visible_ms = max(0.0, exchange_ms - one_ms * _BACKWARD)
    return float(one_ms + visible_ms + all_reduce_ms(last_mb, gpus, gbps, costs))


def times(one: Mapping[str, float], gradients_mb: float, gpus: int, gbps: float,
          costs: Costs) -> dict[str, float]:
    """Return ``predicted_ms, low_ms, high_ms`` of passes on many GPUs from those on one."""
    log_efficiencies = {"predicted_ms": 0.0, "low_ms": costs.spread, "high_ms": -costs.spread}
    ends = {end: passes_ms(one[end], gradients_mb, gpus, gbps,
                           replace(costs, efficiency=costs.efficiency * np.exp(shift)))
            for end, shift in log_efficiencies.items()}
    ms = ends["predicted_ms"]
    below, above = (float(np.exp(np.hypot(np.log(ends[end] / ms), _HALF)))
                    for end in ("low_ms", "high_ms"))
    return {"predicted_ms": ms, "low_ms": ms / below, "high_ms": ms * above}


def gradients_mb(work: Work) -> float:
    """Return the MB of gradients that each GPU has after its backward pass."""
    return sum(work.trained) * 4 / 1e6


def estimate(passes: Estimate, work: Work, device: str, gpus: int) -> Estimate:
    """Return the passes of each GPU of ``gpus`` that share a batch, and what that adds.

    Args:
        passes: the passes of one GPU, on its share of the batch.
        work: what one GPU computes.
        device: the id of the GPU in params/devices.yaml.
        gpus: how many of them.
    """
    gbps = definitions.vendor_device(device).link_gbps
    ends = times(passes.times, gradients_mb(work), gpus, gbps, shipped())
    return replace(passes, **ends, parallel_ms=ends["predicted_ms"] - passes.predicted_ms)


def shipped() -> Costs:
    """Return the costs that ship."""
    return Costs.load(PATH)


def learn(links: pd.DataFrame) -> Costs:
    """Learn from all-reduces ``device, gpus, gbps, mb, measured_ms, licence``.

    ``efficiency``: geometric mean over hosts of the median of all-reduces of several buckets.
    """
    ideal_ms = all_reduce_ms(links["mb"], links["gpus"], links["gbps"], Costs(1.0, 0.0, 0.0))
    large, small = links["mb"] > _BUCKET_MB, links["mb"] == links["mb"].min()
    shares = np.log((ideal_ms / links["measured_ms"])[large].groupby(links["device"]).median())
    reached = np.exp(links["device"].map(shares))
    late_ms = (links["measured_ms"] - ideal_ms / reached) / (links["gpus"] - 1) / 2
    return Costs(float(np.exp(shares.mean())), float((shares - shares.mean()).abs().max()),
                 max(0.0, float(late_ms[small].median())),
                 source="; ".join(sorted(set(links["licence"]))))
