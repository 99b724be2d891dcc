"""Whole steps on a device: forward and backward by its model, loader, copy and optimizer by what profiles gave.

Where no profile is of a device, its optimizer takes what its operators take, its copy what its link is taken to carry, and
its loader what that of this machine's CPU takes, or else the reference's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths
from lib.config import definitions
from lib.errors import InputError
from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict import registry
from lib.predict.networks import composition, step
from lib.predict.networks.composition import SUM, Estimate
from lib.predict.networks.step import Costs, Part, Step
from lib.predict.networks.step_file import StepModel
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.work import dtypes, medmnist_files

FOLDER, SUFFIX = "steps", ".json"
LINK_GBPS = 6.0  # of pageable memory over PCIe: an assumption, until a profile of the device replaces it
_ASSUMED = math.log(3)  # half interval of what was not measured on a device
_STATE = {"adam": 8, "adamw": 8, "sgd": 4}  # bytes of an optimizer's state for each parameter
_PLAIN = {"precision": "fp32", "num_workers": 0, "grad_accum_steps": 1, "resolution": "native", "channels_last": False,
          "augment": False, "random_crop": False, "tf32": False, "optimizer": "adam"}  # settings of the loop that is predicted


@dataclass(frozen=True)
class Loading:
    """What the loader of a step does: samples, the MB that they are as tensors, and the MB of those that it resizes."""

    samples: int
    mb: float
    resized_mb: float = 0.0

    @property
    def terms(self) -> dict[str, float]:
        """Return the terms of the loader and of the copy."""
        return {"batches": 1.0, "samples": float(self.samples), "mb": self.mb, "resized_mb": self.resized_mb}


def loading(model: str, work: Work) -> Loading:
    """Return what loading a batch takes: of a workload as its dataset has it, of another network images of its size."""
    workload = definitions.workloads().get(model)
    resized = workload is not None and workload.dataset != "imagefolder" and \
        medmnist_files.native_size(workload.dataset, workload.size, "native") != workload.size
    return of_samples(work, resized)


def of_samples(work: Work, resized: bool = False) -> Loading:
    """Return what loading the batch of a captured network takes; loaders make 32-bit tensors, whatever computes on them."""
    mb = work.input_values * 4 / 1e6
    return Loading(work.batch_size, mb, mb if resized else 0.0)


@dataclass(frozen=True)
class Recipe:
    """What decides beside the network how long a step takes."""

    optimizer: str = "adam"
    num_workers: int = 0
    grad_accum_steps: int = 1


BASELINE = Recipe()


@dataclass(frozen=True)
class Loop:
    """A training loop captured once: the work of its step (train) and evaluated batch (infer), and how both are loaded."""

    works: Mapping[str, Work]
    resized: bool
    recipe: Recipe

    def step(self, predictor: Predictor, mode: str = "train", shipped: bool = False) -> Step:
        """Predict its training step, or its evaluated batch (infer), on a device, see ``predict``."""
        item = self.works[mode]
        return predict(predictor, item, of_samples(item, self.resized), self.recipe, shipped=shipped)


def path_of(device: str, folder: Path | None = None) -> Path:
    """Return where the file of a device lies; ``folder`` is that of the models (default: those of this machine)."""
    return (folder or paths.MODELS) / FOLDER / f"{device}{SUFFIX}"


def own_files(predictor: Predictor, shipped: bool = False) -> list[Path]:
    """Return where what profiles gave of a device itself may lie; ``learn_all`` writes the first."""
    if predictor.device_type != "cpu":
        return [path_of(predictor.kind, folder) for folder in _folders(shipped)]
    return _own_cpu(predictor, shipped) or [path_of(predictor.model.device, registry.SHIPPED)]


def _own_cpu(predictor: Predictor, shipped: bool) -> list[Path]:
    """Return where the file of the CPU of a device's machine may lie: a reference machine's beside its models."""
    if predictor.machine:
        name = registry.cpu_name(predictor.machine, predictor.model.facts["hardware_id"])
        return [path_of(name, registry.trained_folder(archive.machine_folder(predictor.machine), name))]
    return [] if shipped else [path_of(registry.cpu_here(), folder) for folder in _folders(shipped)]


def of_itself(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return what profiles gave of a device, None where they gave nothing."""
    return _first(own_files(predictor, shipped))


def of_device(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return what profiles gave of a device; of a CPU without any, what those of the reference gave; None for another GPU."""
    own = of_itself(predictor, shipped)
    if own or predictor.device_type != "cpu":
        return own
    return _first([path_of(predictor.model.device, registry.SHIPPED), *_shipped_cpus()])


def of_host(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return what profiles gave of the CPU of a device's machine, or else of the reference's: it feeds whatever computes."""
    return _first([*_own_cpu(predictor, shipped), *_shipped_cpus()])


def _shipped_cpus() -> list[Path]:
    return sorted((registry.SHIPPED / FOLDER).glob(f"cpu-*{SUFFIX}"))


def _folders(shipped: bool) -> list[Path]:
    return [registry.SHIPPED] if shipped else [paths.MODELS, registry.SHIPPED]


def _first(candidates: Iterable[Path]) -> StepModel | None:
    return next((_read(path, path.stat().st_mtime_ns) for path in candidates if path.is_file()), None)


@cache
def _read(path: Path, _: int) -> StepModel:
    return StepModel.load(path)


def predict(predictor: Predictor, work: Work, load: Loading, recipe: Recipe = BASELINE, shipped: bool = False) -> Step:
    """Predict a training step (work of mode train) or an evaluated batch, with all of its parts.

    ``shipped``: by the files of the reference alone. Raises InputError where no profile of any CPU is at hand.
    """
    return assembled(predictor, work, load, passes_in_a_loop(predictor, work), costs_of(predictor, shipped), recipe)


def passes_in_a_loop(predictor: Predictor, work: Work) -> Estimate:
    """Predict forward and backward within a loop, whose process retains what it frees: it has freed large blocks of its data.

    By then glibc's thresholds are at their largest. Where they do not suffice a step pays for fresh memory as well: the
    interval reaches up to that of the default allocator.
    """
    retained, default = predictor.estimate(work, "kept"), predictor.estimate(work)
    return replace(retained, high_ms=max(retained.high_ms, default.high_ms))


def assembled(predictor: Predictor, work: Work, load: Loading, passes: Estimate, costs: Mapping[str, Costs],
              recipe: Recipe = BASELINE) -> Step:
    """Return the step of an estimate of its passes and the costs of its other parts."""
    parts = {name: costs[name].predict(load.terms) for name in ("loader_wait", "h2d")} | split(passes)
    if work.mode == "train":
        update, half = optimizer_terms(predictor, work, recipe.optimizer)
        parts["optimizer"] = costs["optimizer"].predict(update, half).times(1 / recipe.grad_accum_steps)
    else:
        del parts["backward"]
    if recipe.num_workers:
        rest_ms = sum(part.predicted_ms for name, part in parts.items() if name != "loader_wait")
        parts["loader_wait"] = _hidden(parts["loader_wait"], recipe.num_workers, rest_ms)
    state_mb = sum(work.trained) * _STATE[recipe.optimizer] / 1e6
    return Step({name: parts[name] for name in step.PARTS if name in parts}, passes, work.memory_mb + state_mb)


def costs_of(predictor: Predictor, shipped: bool = False) -> Mapping[str, Costs]:
    """Return the costs of each part on a device; the loader's are those of the host. InputError where none are of a CPU."""
    own, host = of_device(predictor, shipped), of_host(predictor, shipped)
    if host is None:
        raise InputError(f"no costs of a CPU's loader in {registry.SHIPPED / FOLDER}; run: python -m lib models --train "
                         "profiles")
    if own:
        return own.costs
    launch_ms = predictor.model.facts["launch_ms"]
    return {"loader_wait": replace(host.costs["loader_wait"], source=f"as on {host.device}"),
            "h2d": Costs({"batches": launch_ms, "mb": 1 / LINK_GBPS}, _ASSUMED, 0, f"a link of {LINK_GBPS:g} GB/s, assumed"),
            "optimizer": Costs({"operators_ms": 1.0, "calls": 0.0}, _ASSUMED, 0, "the sum of its operators")}


def optimizer_terms(predictor: Predictor, work: Work, optimizer: str = "adam") -> tuple[dict[str, float], float]:
    """Return the terms of the optimizer's part on a device, and half the interval of its operators in log time."""
    update = work.update(optimizer, predictor.device_type != "cpu", dtypes.torch_dtype(predictor.dtype).itemsize)
    estimate = composition.estimate(update, predictor.model, SUM)
    half = math.log(estimate.high_ms / estimate.predicted_ms)
    return {"operators_ms": estimate.predicted_ms, "calls": float(update.calls)}, half


def split(passes: Estimate) -> dict[str, Part]:
    """Return forward and backward of an estimate: as its operators share the time."""
    cost = passes.operators["predicted_ms"] * passes.operators["calls"]
    share = float((cost * passes.operators["backward_calls"] / passes.operators["calls"]).sum() / cost.sum())
    whole = Part(passes.predicted_ms, passes.low_ms, passes.high_ms)
    return {"forward": whole.times(1 - share), "backward": whole.times(share)}


def _hidden(part: Part, workers: int, rest_ms: float) -> Part:
    """Return what is left to wait for where workers load the next batches meanwhile."""
    return Part(*(max(0.0, ms / workers - rest_ms) for ms in (part.predicted_ms, part.low_ms, part.high_ms)), part.source)


def plain(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the usable runs of the plain loop in fp32, whose step is the one that is predicted.

    Left out are runs with loader workers, accumulated gradients, another precision, optimizer, model, resolution or layout than
    the workload's own, and augmentation.
    """
    models = {name: workload.model for name, workload in definitions.workloads().items()}
    same = np.logical_and.reduce([runs[name] == value for name, value in _PLAIN.items()])
    return runs[same & (runs["workload_id"].map(models) == runs["arch"]) & (runs["verdict"] != VERDICTS[-1])]


def measured_ms(runs: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return the median step in ms by workload and batch size of the plain loops (``plain``) that were profiled on a CPU."""
    runs = plain(runs[runs["backend"] == "cpu"])
    return runs.groupby(["workload_id", "batch_size"])["step_median_ms"].median().to_dict()


def measured_step_ms(predictor: Predictor, model: str, batch_size: int, shipped: bool = False) -> float:
    """Return the profiled step of a workload at a batch size on a device, NaN where there is none: its plain loop alone.

    ``shipped``: in the profiles of the reference alone.
    """
    hardware_id = predictor.model.facts.get("hardware_id", "")
    sources = ("replay",) if shipped else ("replay", "measure")
    runs = pd.concat([archive.runs(source) for source in sources], ignore_index=True)
    same = runs[(runs["hardware_id"] == hardware_id) & (runs["threads"] == predictor.model.facts.get("threads"))]
    return measured_ms(same).get((model, batch_size), math.nan) if hardware_id and predictor.device_type == "cpu" else math.nan
