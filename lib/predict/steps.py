"""Whole training steps on a device: passes by its model; loader, copy and optimizer by costs learned from profiles.

A device without profiles takes the sum of its optimizer's operators, an assumed link bandwidth for the copy, and the loader of
this machine's CPU or else of the reference.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import files, paths
from lib.config import definitions
from lib.errors import InputError
from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict import registry
from lib.predict.networks import composition
from lib.predict.networks.composition import PLAIN_SUM, Estimate
from lib.predict.networks.step import STEP_PHASES, Costs, Step, StepModel, StepPart
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.work import dtypes, medmnist_files

FOLDER, SUFFIX = "steps", ".json"
LINK_GBPS = 6.0  # of pageable memory over PCIe: assumed until the device is profiled
_ASSUMED = math.log(3)  # half interval, in log time, of costs that were not measured on a device
_STATE = {"adam": 8, "adamw": 8, "sgd": 4}  # bytes of an optimizer's state for each parameter
_PLAIN = {"precision": "fp32", "num_workers": 0, "grad_accum_steps": 1, "resolution": "native", "channels_last": False,
          "augment": False, "random_crop": False, "tf32": False, "optimizer": "adam"}  # settings of the loop that is predicted


def loading(model: str, work: Work) -> dict[str, float]:
    """Return the terms of the loader and of the copy of a batch, of a workload's dataset or of images of the network's size."""
    workload = definitions.workloads().get(model)
    resized = workload is not None and workload.dataset != "imagefolder" and \
        medmnist_files.native_size(workload.dataset, workload.size, "native") != workload.size
    return _loading(work, resized)


def _loading(work: Work, resized: bool) -> dict[str, float]:
    mb = work.input_values * 4 / 1e6  # loaders make 32-bit tensors whatever the network computes in
    return {"batches": 1.0, "samples": float(work.batch_size), "mb": mb, "resized_mb": mb * resized}


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

    def step(self, predictor: Predictor, mode: str = "train") -> Step:
        """Predict its training step, or its evaluated batch (``infer``), on a device, see ``predict``."""
        item = self.works[mode]
        return predict(predictor, item, _loading(item, self.resized), self.recipe)


def path_of(device: str, folder: Path | None = None) -> Path:
    """Return the file of a device; ``folder`` holds models (default: this machine's)."""
    return (folder or paths.MODELS) / FOLDER / f"{device}{SUFFIX}"


def own_files(predictor: Predictor) -> list[Path]:
    """Return the files that may hold costs learned from a device's own profiles; ``learn_all`` writes the first."""
    if predictor.device_type != "cpu":
        folders = [registry.SHIPPED] if predictor.shipped else [paths.MODELS, registry.SHIPPED]
        return [path_of(predictor.kind, folder) for folder in folders]
    return _own_cpu(predictor) or [path_of(predictor.model.device, registry.SHIPPED)]


def _own_cpu(predictor: Predictor) -> list[Path]:
    """Return the files of the CPU of a device's machine; a reference machine's lie beside its models."""
    if predictor.machine:
        name = registry.cpu_name(predictor.machine, predictor.model.facts["hardware_id"])
        return [path_of(name, registry.trained_folder(archive.machine_folder(predictor.machine), name))]
    return [] if predictor.shipped else [path_of(registry.cpu_here(), folder) for folder in (paths.MODELS, registry.SHIPPED)]


_read = files.until_changed(StepModel.load)


def _first(candidates: Iterable[Path]) -> StepModel | None:
    return next((_read(path) for path in candidates if path.is_file()), None)


def costs_of(predictor: Predictor) -> Mapping[str, Costs]:
    """Return the costs of each part on a device; the loader's are the host's. InputError without costs of any CPU.

    A CPU without profiles takes those of the reference, a GPU assumed ones.
    """
    of_reference = sorted((registry.SHIPPED / FOLDER).glob(f"cpu-*{SUFFIX}"))
    host = _first([*_own_cpu(predictor), *of_reference])
    if host is None:
        raise InputError(f"no costs of a CPU's loader in {registry.SHIPPED / FOLDER}; run: python -m lib models --train "
                         "profiles")
    others = [path_of(predictor.model.device, registry.SHIPPED), *of_reference] if predictor.device_type == "cpu" else []
    if own := _first([*own_files(predictor), *others]):
        return own.costs
    return {"loader_wait": replace(host.costs["loader_wait"], source=f"as on {host.device}"),
            "h2d": Costs({"batches": predictor.model.facts["launch_ms"], "mb": 1 / LINK_GBPS}, _ASSUMED, 0,
                         f"a link of {LINK_GBPS:g} GB/s, assumed"),
            "optimizer": Costs({"operators_ms": 1.0, "calls": 0.0}, _ASSUMED, 0, "the sum of its operators")}


def predict(predictor: Predictor, work: Work, load: Mapping[str, float], recipe: Recipe = BASELINE,
            passes: Estimate | None = None, costs: Mapping[str, Costs] | None = None) -> Step:
    """Predict a training step (work of mode train) or an evaluated batch, with all of its parts.

    ``load``: see ``loading``; ``passes``, ``costs``: those of the device by default. Raises InputError without a profile of any
    CPU.
    """
    passes, costs = passes or passes_in_a_loop(predictor, work), costs or costs_of(predictor)
    parts = {name: costs[name].predict(load) for name in ("loader_wait", "h2d")} | split(passes)
    if work.mode == "train":
        update, half = optimizer_terms(predictor, work, recipe.optimizer)
        parts["optimizer"] = costs["optimizer"].predict(update, half).times(1 / recipe.grad_accum_steps)
    else:
        del parts["backward"]
    if recipe.num_workers:
        wait, rest_ms = parts.pop("loader_wait"), sum(part.predicted_ms for part in parts.values())
        hidden = (max(0.0, ms / recipe.num_workers - rest_ms) for ms in (wait.predicted_ms, wait.low_ms, wait.high_ms))
        parts["loader_wait"] = StepPart(*hidden, wait.source)
    state_mb = sum(work.trained) * _STATE[recipe.optimizer] / 1e6
    return Step({name: parts[name] for name in (*STEP_PHASES, "parallel") if name in parts}, passes, work.memory_mb + state_mb)


def passes_in_a_loop(predictor: Predictor, work: Work) -> Estimate:
    """Predict forward and backward within a training loop, whose process retains freed memory.

    Freeing the data's large blocks has raised glibc's thresholds to their largest. Larger tensors still cost page faults, so
    the interval reaches up to that of the default allocator.
    """
    retained, default = predictor.estimate(work, "kept"), predictor.estimate(work)
    return replace(retained, high_ms=max(retained.high_ms, default.high_ms))


def optimizer_terms(predictor: Predictor, work: Work, optimizer: str = "adam") -> tuple[dict[str, float], float]:
    """Return the terms of the optimizer on a device, and half the interval of its operators in log time."""
    update = work.update(optimizer, predictor.device_type != "cpu", dtypes.torch_dtype(predictor.dtype).itemsize)
    estimate = composition.estimate(update, predictor.model, PLAIN_SUM)
    half = math.log(estimate.high_ms / estimate.predicted_ms)
    return {"operators_ms": estimate.predicted_ms, "calls": float(update.calls)}, half


def split(passes: Estimate) -> dict[str, StepPart]:
    """Split an estimate into forward and backward by the time of their operators, and what many GPUs add."""
    cost_ms, backward, calls = (passes.operators[name] for name in ("cost_ms", "backward_calls", "calls"))
    share = float((cost_ms * backward / calls).sum() / cost_ms.sum())
    whole = StepPart(passes.predicted_ms, passes.low_ms, passes.high_ms)
    added = passes.parallel_ms / passes.predicted_ms
    parts = {"forward": (1 - share) * (1 - added), "backward": share * (1 - added), "parallel": added}
    return {name: whole.times(part) for name, part in parts.items() if part or name != "parallel"}


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


def measured_step_ms(predictor: Predictor, model: str, batch_size: int) -> float:
    """Return the profiled ms of a workload's plain step at a batch size on a device, NaN without one."""
    facts = predictor.model.facts
    if predictor.device_type != "cpu" or not facts.get("hardware_id"):
        return math.nan
    runs = pd.concat(map(archive.runs, ("replay",) if predictor.shipped else ("replay", "measure")), ignore_index=True)
    same = runs[(runs["hardware_id"] == facts["hardware_id"]) & (runs["threads"] == facts.get("threads"))]
    return measured_ms(same).get((model, batch_size), math.nan)
