"""Passes on equal GPUs of one machine: what their exchange and their shared host add to the time of one GPU.

Published all-reduces tell what a link carries, networks under DataParallel what its host takes; no network was measured under
DistributedDataParallel.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from lib import paths
from lib.config import definitions
from lib.predict import steps
from lib.predict.model_file import Format, NotNegative, Positive, Saved
from lib.predict.networks.composition import Estimate
from lib.predict.networks.sums import cross_predicted, each
from lib.predict.networks.work import Work
from lib.predict.operators.validation import half_interval

PATH = paths.REFERENCE / "models" / "parallel.json"
ENDS = ("predicted_ms", "low_ms", "high_ms")
TERMS = ("weights_mb", "gradients_mb", "forward_operators")
MEASURED_GPUS = 4  # on which networks ran under DataParallel
_BUCKET_MB = 26.2  # of gradients that torch's DistributedDataParallel sends together


@dataclass(frozen=True)
class Costs(Saved):
    """What GPUs that work together cost.

    ``efficiency``: shares of the link's stated bandwidth that hosts reach: usual, most, least. ``latency_ms``: of a step round
    the ring. ``host_ms``: by mode, of an operator of the forward pass for each GPU and once more. ``half``: half the interval
    of DataParallel in log time, families of networks left out.
    """

    efficiency: tuple[Positive, Positive, Positive]
    latency_ms: NotNegative
    host_ms: dict[str, NotNegative]
    half: NotNegative

    FORMAT: ClassVar = Format("costs of parallel GPUs", "compute it again with: python -m lib models --outsiders FOLDER --ship")


def all_reduce_ms(mb: Any, gpus: Any, gbps: Any, latency_ms: float) -> Any:
    """Return the ms of all-reduces in a ring of GPUs, by buckets; its 2 (n - 1) steps carry a share of 1/n each."""
    return 2 * (gpus - 1) * (latency_ms * np.ceil(mb / _BUCKET_MB) + mb / gpus / gbps)


def _ddp_ms(passes_ms: Any, terms: Mapping[str, Any], gbps: Any, costs: Costs) -> Any:
    """Return what is left of the exchange of gradients: the backward pass hides all buckets but the last."""
    gpus, mb = terms["gpus"], terms["gradients_mb"]
    last_mb = np.minimum(mb, _BUCKET_MB)
    hidden_ms = all_reduce_ms(mb - last_mb, gpus, gbps, costs.latency_ms) - passes_ms * terms["backward_share"]
    return np.maximum(hidden_ms, 0) + all_reduce_ms(last_mb, gpus, gbps, costs.latency_ms)


def _data_parallel_ms(passes_ms: Any, terms: Mapping[str, Any], gbps: Any, costs: Costs) -> Any:
    """Return what DataParallel adds: weights and inputs to each GPU, gradients back, one process that launches all kernels."""
    host_ms = np.asarray(pd.Series(costs.host_ms)[terms["mode"]]) * _launches(terms)
    return np.hypot(passes_ms + (terms["weights_mb"] + terms["gradients_mb"]) / gbps, host_ms) - passes_ms


def _launches(terms: Mapping[str, Any]) -> Any:
    return terms["forward_operators"] * (terms["gpus"] + 1)


class Scheme(NamedTuple):
    """How GPUs share a batch: ``words`` of a train step and of inference, the ms that it adds."""

    words: Mapping[str, str]
    added_ms: Callable[..., Any]


MEASURED = "data_parallel"  # the scheme under which networks were measured
SCHEMES = {"ddp": Scheme({"train": "DDP, all-reduce of {:,.0f} MB overlaps the backward pass; no network was measured so",
                          "infer": "a process each"}, _ddp_ms),
           MEASURED: Scheme(dict.fromkeys(("train", "infer"), "DataParallel, one process copies weights to all GPUs and launches "
                                          "all kernels"), _data_parallel_ms)}


def times(scheme: str, passes: Mapping[str, Any], terms: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """Return ENDS of passes on many GPUs from those on one; numbers or columns.

    ``terms``: mode, gpus, gbps (stated), backward_share and TERMS.
    """
    ms, low, high = (passes[end] + SCHEMES[scheme].added_ms(passes[end], terms, share * terms["gbps"], costs)
                     for end, share in zip(ENDS, costs.efficiency, strict=True))
    below, above = (np.hypot(np.log(end / ms), costs.half * (scheme == MEASURED)) for end in (low, high))
    return dict(zip(ENDS, (ms, ms * np.exp(-below), ms * np.exp(above)), strict=True))


def terms_of(work: Work) -> dict[str, float]:
    """Return TERMS of the passes of each GPU: its weights and inputs, and gradients, in MB."""
    return dict(zip(TERMS, (work.weight_bytes / 1e6, sum(work.trained) * 4 / 1e6, work.modules), strict=True))


def estimate(passes: Estimate, work: Work, device: str, gpus: int, scheme: str) -> Estimate:
    """Return the passes of each GPU of ``gpus`` that work together (``work``: of one), their interval and ``parallel_ms``."""
    share = steps.split(passes)["backward"].predicted_ms / passes.predicted_ms
    terms = {"mode": work.mode, "gpus": gpus, "gbps": definitions.vendor_device(device).link_gbps, "backward_share": share}
    ends = {end: float(ms) for end, ms in times(scheme, passes.times, terms | terms_of(work), shipped()).items()}
    return replace(passes, **ends, parallel_ms=ends["predicted_ms"] - passes.predicted_ms)


def shipped() -> Costs:
    """Return the costs that ship."""
    return _load(PATH, PATH.stat().st_mtime_ns)


@cache
def _load(path: Path, _: int) -> Costs:
    return Costs.load(path)


def learn(links: pd.DataFrame, networks: pd.DataFrame) -> Costs:
    """Learn from all-reduces and from networks under DataParallel.

    ``links``: device, gpus, gbps, mb, measured_ms. ``networks``: terms of ``times``, group (family), passes_ms, and alone_ms of
    one GPU.
    """
    fitted = np.array([_link(rows) for _, rows in links.groupby("device")])
    latency_ms, usual = np.exp(np.log(fitted).mean(axis=0))
    bare = Costs((usual, fitted[:, 1].max(), fitted[:, 1].min()), latency_ms, dict.fromkeys(SCHEMES[MEASURED].words, 0.0), 0.0)
    errors = cross_predicted(each(networks["group"]), lambda test: np.log(
        networks[test]["passes_ms"] / _predicted(networks[test], _with_host(networks[~test], bare))))
    return replace(_with_host(networks, bare), half=half_interval(errors))


def _link(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the latency of a step round the ring in ms, and the share of the stated bandwidth."""
    from scipy.optimize import nnls

    terms = [all_reduce_ms(rows["mb"], rows["gpus"], *given) for given in ((math.inf, 1.0), (rows["gbps"], 0.0))]
    latency_ms, rate = nnls(np.column_stack([part / rows["measured_ms"] for part in terms]), np.ones(len(rows)))[0]
    return latency_ms, 1 / rate


def _predicted(rows: pd.DataFrame, costs: Costs) -> pd.Series:
    return times(MEASURED, dict.fromkeys(ENDS, rows["alone_ms"]), rows, costs)[ENDS[0]]


def _with_host(rows: pd.DataFrame, bare: Costs) -> Costs:
    """Return costs with the median rates at which measured times come out right, a vote per family."""
    rates = np.sqrt(np.maximum(rows["passes_ms"] ** 2 - _predicted(rows, bare) ** 2, 0)) / _launches(rows)
    votes = 1 / rows.groupby(["group", "mode"])["mode"].transform("size")
    return replace(bare, host_ms={mode: float(np.quantile(part, 0.5, weights=votes[part.index], method="inverted_cdf"))
                                  for mode, part in rates.groupby(rows["mode"])})
