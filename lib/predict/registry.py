"""Model files (shipped, calibrated here, of imported machines) and the devices that they predict."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from lib import paths, store
from lib.config.definitions import find_device, load_devices
from lib.errors import InputError, choices
from lib.files import until_changed
from lib.measure import archive, machine
from lib.names import did_you_mean, known
from lib.predict import boards, transfer, transfer_cpu
from lib.predict.analytic import roofline
from lib.predict.analytic.roofline import Roof
from lib.predict.gpu import model as gpu_model
from lib.predict.networks import composition, resident
from lib.predict.networks.composition import Composition, Estimate
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import RETRAIN, CostModel
from lib.predict.scores import OUTSIDE
from lib.predict.transfer import ANY_GPU
from lib.work import dtypes

SHIPPED = paths.REFERENCE / "models"
_SUFFIX, _CPU = ".json.gz", transfer_cpu.CPU
DOMINANT_SHARE = 0.5  # share of the predicted time above which a resource limits the work
NOT_SCALED = "not scaled"  # in the source of a CPU's answer: it is the time of the CPU that its model was trained on
MOST_BORROWED = 0.5  # share of the time answered by other devices above which an answer is zero-shot


def path_of(device: str, dtype: str, folder: Path | None = None) -> Path:
    """Return the file of the model of a device and element type."""
    return (folder or paths.MODELS) / f"{device}_{dtype}{_SUFFIX}"


def model_files(shipped: bool = False) -> dict[tuple[str, str], Path]:
    """Return model files by (device, element type); a model calibrated here replaces a shipped one.

    ``shipped``: shipped models only. Raises InputError for a file whose name is no model's.
    """
    folders = (SHIPPED,) if shipped else (SHIPPED, paths.MODELS)
    return {key_of(path): path for folder in folders for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def cpu_name(machine_name: str, hardware_id: str) -> str:
    """Return the name of a CPU's model: the machine's name, ending in its hardware id."""
    stem = re.sub(r"[^a-z0-9]+", "-", machine_name.lower()).strip("-")
    return f"{_CPU}{stem}" if stem.endswith(f"-{hardware_id}") else f"{_CPU}{stem}-{hardware_id}"


def cpu_here() -> str:
    """Return the name of this machine's CPU in file names."""
    return f"{_CPU}{machine.name()}"


def trained_folder(folder: Path, device: str) -> Path:
    """Return the folder for a model trained on a reference machine's data.

    Models of committed CPUs ship; others stay in the machine's folder.
    """
    ships = folder.parent == paths.REFERENCE and device.startswith(_CPU)
    return SHIPPED if ships else folder / "trained"


def machine_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the files of models trained on a machine's measurements, by (cpu or a GPU's id, element type)."""
    trained = sorted(folder.glob(f"trained/*{_SUFFIX}"))
    if folder.parent == paths.REFERENCE:
        trained += [path for (name, _), path in model_files(shipped=True).items()
                    if name == cpu_name(folder.name, name.rpartition("-")[2])]
    result = {}
    for path in trained:
        device, dtype = key_of(path)
        result["cpu" if device.startswith(_CPU) else device, dtype] = path
    return result


def key_of(path: Path) -> tuple[str, str]:
    """Return device and element type from a file's name; InputError if it is not a model's name."""
    device, _, dtype = path.name.removesuffix(_SUFFIX).rpartition("_")
    if not device or dtype not in dtypes.NAMES:
        raise InputError(f"{path} does not have a model's name, <device>_<element type>{_SUFFIX}, such as t4_fp32{_SUFFIX}; "
                         "rename or remove it")
    return device, dtype


def load(path: Path) -> CostModel:
    """Read a model; InputError if its file is damaged, lacks facts, or holds another model than its name says."""
    device, dtype = key_of(path)
    model, of_cpu = CostModel.load(path), device.startswith(_CPU)
    needed = ("dtype", "latency_type", "launch_ms", *(() if device == ANY_GPU else ("hardware_id", "peak_gflops", "peak_gbps")))
    if missing := [name for name in needed if name not in model.facts]:
        raise InputError(f"{path} lacks the facts {choices(missing)}, which predictions need; {RETRAIN}")
    rates = (("a composition has", model.compositions, composition.TERMS),
             ("resident memory has", model.resident, resident.TERMS))
    wrong = {
        f" holds a {model.facts['dtype']} model of {model.device}, not what its name says; rename it":
            (model.device, model.facts["dtype"]) != (device, dtype),
        f" was fitted on other hardware, {model.facts.get('hardware_id')}, than its name says; calibrate again":
            of_cpu and not device.endswith(f"-{model.facts.get('hardware_id')}"),
        f" is named as that of a {'CPU' if of_cpu else 'GPU'}, and holds that of another device type":
            (model.chip is None) != (of_cpu or device == ANY_GPU),
        **{f": {what} other rates than {choices(terms)}; {RETRAIN}":
           any(set(fitted.rates) != set(terms) for fitted in parts.values()) for what, parts, terms in rates}}
    for reason, holds in wrong.items():
        if holds:
            raise InputError(f"{path}{reason}")
    return model


@dataclass(frozen=True)
class Predictor:
    """A device that can be predicted: its model, memory and price.

    ``origin`` names the machine that the model was trained on if it is another one: every answer is then zero-shot.
    ``shipped``: what was calibrated or profiled here is ignored.
    """

    device: str
    dtype: str
    model: CostModel
    origin: str = ""
    memory_mb: float = math.inf
    price_per_hour: float | None = None
    shipped: bool = False

    @cached_property
    def measured_networks(self) -> pd.DataFrame | None:
        """Give the networks that were measured end to end on this device; None for a GPU known from its data sheet alone."""
        if self.model.facts.get("hardware_id", "vendor:").startswith("vendor:"):
            return None
        folders = archive.machines(imported=bool(self.machine)).values()
        files = (path for folder in folders for path in archive.networks_files(folder))
        return self._measured_here("networks", files).fillna({"input_shape": ""})

    def _measured_here(self, schema: str, files: Iterable[Path]) -> pd.DataFrame:
        """Return the rows measured on this very device; on a CPU, with the thread count of its model."""
        facts, tables = self.model.facts, [store.read_own(path, schema) for path in files] or [store.read_all([], schema)]
        return archive.of_device(pd.concat(tables, ignore_index=True), facts.get("devices") or ["cpu"],
                                 facts.get("hardware_id", ""), 0 if self.model.chip else facts.get("threads"))

    @property
    def kind(self) -> str:
        """Return ``cpu``, or a GPU's id in params/devices.yaml."""
        return self.device.partition("@")[0]

    @property
    def device_type(self) -> str:
        """Return cpu or cuda: whose kernels work is captured as."""
        return "cuda" if self.model.chip else "cpu"

    @property
    def machine(self) -> str:
        """Return the reference machine of the device; empty for this machine's devices and for GPUs by data sheet."""
        return self.device.partition("@")[2]

    @cached_property
    def measured_operators(self) -> pd.DataFrame:
        """Give the stable operator measurements of this device, timed as its model answers."""
        facts, machines = self.model.facts, archive.machines(imported=True)
        sweeps = [] if self.origin else facts.get("sweeps", [])
        files = (folder.parent / sweep / "sweep.parquet" for sweep in sweeps for name, folder in machines.items()
                 if sweep.startswith(f"{name}/"))
        table = self._measured_here("sweep", filter(Path.is_file, files))
        same = {name: facts[name] for name in ("dtype", "cache", "latency_type") if facts.get(name)}
        same |= {"status": "ok", "verdict": "stable"}
        return table[np.logical_and.reduce([table[name] == value for name, value in same.items()])]

    def measured_times(self, work: Work | None = None) -> Mapping[tuple, float]:
        """Return measured times in ms by operator key; with ``work``, only for operators that it may contain."""
        table = self.measured_operators
        if work is not None:
            table = table[table["flops"].isin(work.table["flops"]) & table["bytes"].isin(work.table["bytes"])]
        return composition.lookup(table)

    @property
    def calibration(self) -> gpu_model.Calibration | None:
        """Return what networks measured on this card correct, None without any."""
        return None if self.shipped else gpu_model.calibration_of(self.kind)

    def widened(self, times: Mapping[str, float], kind: str) -> dict[str, float]:
        """Return predicted, low and high ms as they hold where this model was not calibrated, see ``boards``."""
        if not self.model.was_measured_elsewhere:
            return dict(times)
        return boards.widened(times, kind, is_of_measured_architecture(self.kind))

    def composition(self, mode: str, memory: str = "default") -> Composition:
        """Return what a network adds to the sum of its operators; nothing if no network was measured on the device."""
        return self.model.compositions.get(f"{mode} {memory}", composition.PLAIN_SUM)

    def estimate(self, work: Work, memory: str = "default") -> Estimate:
        """Predict a pass or step; ``memory``: a CPU process's heap, ``default``, or ``kept`` (freed memory is retained)."""
        return composition.estimate(work, self.model, self.composition(work.mode, memory), self.measured_times(work))

    @property
    def roof(self) -> Roof:
        """Return the roof of the device, as its model knows it."""
        facts = self.model.facts
        return Roof(self.device, self.dtype, "vendor" if self.model.chip else "measured", facts.get("hardware_id", ""),
                    facts["peak_gflops"], {"device" if self.model.chip else "RAM": facts["peak_gbps"]},
                    launch_us=facts["launch_ms"] * 1e3)

    def roof_ms(self, work: Work) -> float:
        """Return the ms that the operators take at their roofs, one after another."""
        return float(roofline.seconds(work.flops_and_bytes, self.roof).sum()) * 1e3

    def launches_ms(self, work: Work) -> float:
        """Return the ms that launching every operator takes on a CPU."""
        return work.calls * self.roof.launch_us / 1e3

    def bound(self, work: Work, predicted_ms: float) -> str:
        """Return what limits a pass or step, see ``bound_of``."""
        return self.bound_of(work.flops_and_bytes, self.launches_ms(work), predicted_ms)

    def bound_of(self, parts: np.ndarray, launches_ms: float, predicted_ms: float) -> str:
        """Return what limits operators of these FLOPs and bytes (n, 2) for most of their time: launch, compute or memory."""
        if launches_ms > DOMINANT_SHARE * predicted_ms:
            return "launch"
        return "memory" if roofline.memory_share(parts, self.roof) > DOMINANT_SHARE else "compute"

    def source(self, estimate: Estimate) -> str:
        """Return where an answer comes from in words; zero-shot if other devices' kernels predicted most of its time."""
        provenance, borrowed, scaling = estimate.provenance, estimate.provenance.borrowed, self.model.scaling
        if self.origin:
            unscaled = NOT_SCALED + ": busy here" * bool(self.model.facts.get(transfer_cpu.DOUBTFUL))
            how = f", scaled by ceilings measured here ({scaling})" if scaling else "" if self.shipped else f", {unscaled}"
            return f"zero-shot from {self.origin}{how}"
        if provenance.gpu:
            return f"learned from networks on {'this' if provenance.gpu.scope == gpu_model.MEASURED else 'other'} cards"
        if borrowed <= OUTSIDE:
            return "learned from whole networks" if provenance.of_networks else "predicted"
        most = max(provenance.origins, key=provenance.origins.get)
        return f"zero-shot from {most}" if borrowed > MOST_BORROWED else f"predicted, {borrowed:.0%} from {most}"

    @property
    def is_unscaled(self) -> bool:
        """Return whether this machine's CPU is predicted from another CPU, unscaled for want of usable ceilings."""
        return bool(self.origin and not self.model.scaling)


def is_of_measured_architecture(gpu: str) -> bool:
    """Return whether kernels of a GPU of the same generation were measured."""
    vendors = load_devices()
    return gpu in vendors and vendors[gpu].architecture in _measured_architectures(SHIPPED)


@until_changed
def _measured_architectures(_: Path) -> set[str]:
    vendors = load_devices()
    return {vendors[device].architecture for device, _ in model_files(shipped=True) if device in vendors}


def cpu_files(dtype: str, shipped: bool = False) -> list[Path]:
    """Return the files of CPU models, or those that ship with the reference alone."""
    return [path for (device, kind), path in model_files(shipped).items() if device.startswith(_CPU) and kind == dtype]


def shipped_cpu(dtype: str) -> CostModel:
    """Return the CPU model that ships with the reference; InputError if none ships for the element type."""
    if files := cpu_files(dtype, shipped=True):
        return load(files[0])
    raise InputError(f"no {dtype} model of a CPU ships in {SHIPPED}; there are: "
                     f"{choices(map(' '.join, sorted(model_files())))}")


def vendor_of(name: str) -> str:
    """Return the id in params/devices.yaml of a device by its driver's name; InputError lists the nearest names."""
    if not (vendor := find_device(name)):
        near = did_you_mean(name, [device.name for device in load_devices().values()])
        raise InputError(f"params/devices.yaml has no device named {name!r}{near}; add it there: notebook 01_machine, with "
                         "source measure, measures it and gives the entry")
    return vendor


def device_id(device: str, machines: Iterable[str] = ()) -> str:
    """Return the id of a device by any name of it, or of this machine's card (cuda:0); other names are unchanged.

    Raises InputError for a card that this machine lacks, and for a name that resembles some devices.
    """
    device = known(device, ("cpu", "cuda"))
    if re.fullmatch(r"cuda(:\d+)?", device):
        if "cuda:0" not in machine.devices():
            raise InputError(f"device {device!r}: torch finds no CUDA GPU in this machine; name a GPU of params/devices.yaml, "
                             "such as h100-sxm or rtx-4090")
        return vendor_of(machine.device_name(machine.device(device)))
    if device == "cpu" or device in load_devices() or "@" in device or device in machines:
        return device
    found = find_device(device)
    if not found and (near := did_you_mean(device, ["cpu", *load_devices()]) or did_you_mean(device, machines)):
        raise InputError(f"no device {device!r}{near} (params/devices.yaml lists all GPUs)")
    return found or device


def reference_cpus(dtype: str) -> list[CostModel]:
    """Return the models of all measured CPUs, imported ones included, without calibrated models."""
    models = [load(path) for path in dict.fromkeys([*cpu_files(dtype), *_machine_cpus(dtype)])]
    return [model for model in models if transfer_cpu.CALIBRATED not in model.facts]


def _machine_cpus(dtype: str) -> list[Path]:
    """Return the model files of the CPUs of all reference machines."""
    models = map(machine_files, archive.machines(imported=True).values())
    return [files["cpu", dtype] for files in models if ("cpu", dtype) in files]


def _files_of_this_cpu(dtype: str) -> list[Path]:
    """Return the model files of this machine's CPU at any thread count: calibrated here, shipped, or imported."""
    candidates = [model_files().get((cpu_here(), dtype)), *_machine_cpus(dtype)]
    suffix = f"-{transfer_cpu.identity()['hardware_id']}"
    return [path for path in dict.fromkeys(candidates) if path and key_of(path)[0].endswith(suffix)]


def has_cpu(dtype: str) -> bool:
    """Return whether a model of an element type answers for this machine's CPU."""
    return bool(_files_of_this_cpu(dtype) or reference_cpus(dtype))


def predictor(device: str, dtype: str, shipped: bool = False) -> Predictor | None:
    """Return a device that can be predicted, None without a model; InputError for a damaged file.

    ``shipped``: ignore what was measured or calibrated on this machine.
    """
    return _cpu(dtype, shipped) if device == "cpu" else _gpu(device, dtype, model_files(shipped), shipped)


def _cpu(dtype: str, shipped: bool) -> Predictor | None:
    """Return this machine's CPU with its own model, or else zero-shot with the model of the nearest CPU.

    Each thread count counts as its own machine, nearest to the same CPU at another count. ``shipped``: the CPU as the shipped
    model predicts it, unscaled.
    """
    if shipped:
        own, other = None, next(map(load, cpu_files(dtype, shipped=True)), None)
    else:
        files = _files_of_this_cpu(dtype)  # read as far as needed: a later one may be damaged
        own = next((model for model in map(load, files) if model.is_of(**transfer_cpu.identity())), None)
        others = [] if own else [load(path) for path in files] or reference_cpus(dtype)
        other = transfer_cpu.transferred(others, transfer_cpu.host())[0] if others else None
    if not (model := own or other):
        return None
    memory_mb = psutil.virtual_memory().total / 1e6
    return Predictor("cpu", dtype, model, "" if own else model.device, memory_mb, shipped=shipped)


_donor = until_changed(load)  # one donor serves many GPUs


def _gpu(name: str, dtype: str, files: transfer.Files, shipped: bool) -> Predictor | None:
    """Return a GPU with its completed model; None without a rate for the element type, or without any donor."""
    vendor = load_devices().get(name)
    if not vendor or dtype not in vendor.peak_gflops or not vendor.multiprocessors:
        return None
    model = transfer.gpu_model(vendor, dtype, files, _donor)
    return Predictor(name, dtype, model, "", vendor.memory_mb, vendor.price_per_hour, shipped) if model else None


def _of_machine(device: str, dtype: str, shipped: bool) -> list[Predictor]:
    """Return the devices of a reference machine: all (NAME), or one device type (cpu@NAME); InputError without a model."""
    wanted, at, name = device.rpartition("@")
    folder = archive.machine_folder(name)
    models, predictors = machine_files(folder), []
    for (device_type, of_dtype), path in models.items():
        if of_dtype != dtype or (at and device_type != wanted):
            continue
        if device_type == "cpu":
            memory_mb = archive.hardware(folder).get("memory_gib", math.inf) * 2**30 / 1e6
            predictors.append(Predictor(f"cpu@{name}", dtype, load(path), memory_mb=memory_mb, shipped=shipped))
        elif gpu := _gpu(device_type, dtype, {**model_files(shipped), (device_type, dtype): path}, shipped):
            predictors.append(replace(gpu, device=f"{device_type}@{name}"))
    if not predictors:
        raise InputError(f"no {dtype} model of {device}; the machine {name} has: "
                         f"{choices(map(' '.join, models)) or 'none'}; train them on what was measured there: "
                         f"python -m lib models --train {name}")
    return predictors


def for_devices(devices: Sequence[str], dtype: str, shipped: bool = False) -> list[Predictor]:
    """Return the named devices, or all that are measured (this CPU, GPUs with a model), for an element type.

    A card of this machine may be named cuda:0. ``shipped``: ignore what was measured or calibrated on this machine. Raises
    InputError for a device without a model (it lists the devices that have one, and how to calibrate), for a device named
    twice, and for a damaged file.
    """
    machines = archive.machines(imported=True)
    devices = [device_id(device, machines) for device in devices]
    if len(set(devices)) < len(devices):
        raise InputError(f"a device is named twice: {choices(devices)}; name each once")
    predictors, vendors = [], set(load_devices())
    usual = ["cpu", *sorted({device for device, _ in model_files(shipped)} & vendors)]
    for device in devices or usual:
        if device not in usual and device not in vendors and device.rpartition("@")[2] in machines:
            predictors += _of_machine(device, dtype, shipped)
        elif with_model := predictor(device, dtype, shipped):
            predictors.append(with_model)
        elif devices:
            others = choices(name for name in usual if name != device)
            raise InputError(f"no {dtype} model of a device {device!r}; there are models of: {others}, and of the "
                             f"machines: {choices(machines)}; any GPU of "
                             f"params/devices.yaml is predicted zero-shot where {ANY_GPU} has its element type; for a machine "
                             "of your own, run there: python -m lib calibrate")
    if not predictors:
        raise InputError(f"no {dtype} models in {SHIPPED} or {paths.MODELS}; run: python -m lib calibrate")
    return predictors
