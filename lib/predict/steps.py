"""Whole training steps on a device: passes by its model; loader, copy and optimizer by costs learned from profiles.

A device without profiles takes the sum of its optimizer's operators, an assumed link bandwidth for the copy, and the loader of
this machine's CPU or else of the reference.
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
from lib.predict.networks.step_learners import StepModel
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.work import dtypes, medmnist_files

FOLDER, SUFFIX = "steps", ".json"
LINK_GBPS = 6.0  # of pageable memory over PCIe: assumed until the device is profiled
_ASSUMED = math.log(3)  # half interval, in log time, of costs that were not measured on a device
_STATE = {"adam": 8, "adamw": 8, "sgd": 4}  # bytes of an optimizer's state for each parameter
_PLAIN = {"precision": "fp32", "num_workers": 0, "grad_accum_steps": 1, "resolution": "native", "channels_last": False,
          "augment": False, "random_crop": False, "tf32": False, "optimizer": "adam"}  # settings of the loop that is predicted


@dataclass(frozen=True)
class Loading:
    """What the loader of a step does: samples, their MB as tensors, and the MB that it resizes."""

    samples: int
    mb: float
    resized_mb: float = 0.0

    @property
    def terms(self) -> dict[str, float]:
        """Return the terms of the loader and of the copy."""
        return {"batches": 1.0, "samples": float(self.samples), "mb": self.mb, "resized_mb": self.resized_mb}


def loading(model: str, work: Work) -> Loading:
    """Return the loading of a batch: from the dataset of a workload, or images of the network's size."""
    workload = definitions.workloads().get(model)
    resized = workload is not None and workload.dataset != "imagefolder" and \
        medmnist_files.native_size(workload.dataset, workload.size, "native") != workload.size
    return of_samples(work, resized)


def of_samples(work: Work, resized: bool = False) -> Loading:
    """Return the loading of a captured batch; loaders make 32-bit tensors whatever the network computes in."""
    mb = work.input_values * 4 / 1e6
    return Loading(work.batch_size, mb, mb if resized else 0.0)


@dataclass(frozen=True)
class Recipe:
    """The settings of a training loop that change the time of its step."""

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
        """Predict its training step, or its evaluated batch (``infer``), on a device, see ``predict``."""
        item = self.works[mode]
        return predict(predictor, item, of_samples(item, self.resized), self.recipe, shipped=shipped)


def path_of(device: str, folder: Path | None = None) -> Path:
    """Return the file of a device; ``folder`` holds models (default: this machine's)."""
    return (folder or paths.MODELS) / FOLDER / f"{device}{SUFFIX}"


def own_files(predictor: Predictor, shipped: bool = False) -> list[Path]:
    """Return the files that may hold costs learned from a device's own profiles; ``learn_all`` writes the first."""
    if predictor.device_type != "cpu":
        return [path_of(predictor.kind, folder) for folder in _folders(shipped)]
    return _own_cpu(predictor, shipped) or [path_of(predictor.model.device, registry.SHIPPED)]


def _own_cpu(predictor: Predictor, shipped: bool) -> list[Path]:
    """Return the files of the CPU of a device's machine; a reference machine's lie beside its models."""
    if predictor.machine:
        name = registry.cpu_name(predictor.machine, predictor.model.facts["hardware_id"])
        return [path_of(name, registry.trained_folder(archive.machine_folder(predictor.machine), name))]
    return [] if shipped else [path_of(registry.cpu_here(), folder) for folder in _folders(shipped)]


def of_itself(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return costs learned from a device's own profiles, or None."""
    return _first(own_files(predictor, shipped))


def of_device(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return costs learned from a device's profiles, for a CPU without any from the reference's; None for other GPUs."""
    own = of_itself(predictor, shipped)
    if own or predictor.device_type != "cpu":
        return own
    return _first([path_of(predictor.model.device, registry.SHIPPED), *_shipped_cpus()])


def of_host(predictor: Predictor, shipped: bool = False) -> StepModel | None:
    """Return costs of the CPU of a device's machine, or else of the reference: the CPU loads for every device."""
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

    ``shipped``: use only files of the reference. Raises InputError without a profile of any CPU.
    """
    return assembled(predictor, work, load, passes_in_a_loop(predictor, work), costs_of(predictor, shipped), recipe)


def passes_in_a_loop(predictor: Predictor, work: Work) -> Estimate:
    """Predict forward and backward within a training loop, whose process retains freed memory.

    Freeing the data's large blocks has raised glibc's thresholds to their largest. Larger tensors still cost page faults, so
    the interval reaches up to that of the default allocator.
    """
    retained, default = predictor.estimate(work, "kept"), predictor.estimate(work)
    return replace(retained, high_ms=max(retained.high_ms, default.high_ms))


def assembled(predictor: Predictor, work: Work, load: Loading, passes: Estimate, costs: Mapping[str, Costs],
              recipe: Recipe = BASELINE) -> Step:
    """Return the step made of its passes and the costs of its other parts."""
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
    """Return the costs of each part on a device; the loader's are the host's. InputError without costs of any CPU."""
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
    """Return the terms of the optimizer on a device, and half the interval of its operators in log time."""
    update = work.update(optimizer, predictor.device_type != "cpu", dtypes.torch_dtype(predictor.dtype).itemsize)
    estimate = composition.estimate(update, predictor.model, SUM)
    half = math.log(estimate.high_ms / estimate.predicted_ms)
    return {"operators_ms": estimate.predicted_ms, "calls": float(update.calls)}, half


def split(passes: Estimate) -> dict[str, Part]:
    """Split an estimate into forward and backward by the time of their operators."""
    cost = passes.operators["predicted_ms"] * passes.operators["calls"]
    share = float((cost * passes.operators["backward_calls"] / passes.operators["calls"]).sum() / cost.sum())
    whole = Part(passes.predicted_ms, passes.low_ms, passes.high_ms)
    return {"forward": whole.times(1 - share), "backward": whole.times(share)}


def _hidden(part: Part, workers: int, rest_ms: float) -> Part:
    """Return the loader wait that remains while workers load the next batches."""
    return Part(*(max(0.0, ms / workers - rest_ms) for ms in (part.predicted_ms, part.low_ms, part.high_ms)), part.source)


def plain(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the usable fp32 runs of the plain loop, whose step is predicted.

    Runs with loader workers, gradient accumulation, augmentation, or another precision, optimizer, model, resolution or layout
    than the workload's are left out.
    """
    models = {name: workload.model for name, workload in definitions.workloads().items()}
    same = np.logical_and.reduce([runs[name] == value for name, value in _PLAIN.items()])
    return runs[same & (runs["workload_id"].map(models) == runs["arch"]) & (runs["verdict"] != VERDICTS[-1])]


def measured_ms(runs: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return the median step in ms by workload and batch size of the plain loops (``plain``) that were profiled on a CPU."""
    runs = plain(runs[runs["backend"] == "cpu"])
    return runs.groupby(["workload_id", "batch_size"])["step_median_ms"].median().to_dict()


def measured_step_ms(predictor: Predictor, model: str, batch_size: int, shipped: bool = False) -> float:
    """Return the profiled ms of a workload's plain step at a batch size on a device, NaN without one.

    ``shipped``: use only profiles of the reference.
    """
    hardware_id = predictor.model.facts.get("hardware_id", "")
    sources = ("replay",) if shipped else ("replay", "measure")
    runs = pd.concat([archive.runs(source) for source in sources], ignore_index=True)
    same = runs[(runs["hardware_id"] == hardware_id) & (runs["threads"] == predictor.model.facts.get("threads"))]
    return measured_ms(same).get((model, batch_size), math.nan) if hardware_id and predictor.device_type == "cpu" else math.nan
