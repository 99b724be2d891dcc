"""The models at hand, those that ship, those calibrated here and those of imported machines, and what they predict with."""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from lib import paths, store
from lib.config.definitions import VendorDevice, load_devices
from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.predict import transfer, transfer_cpu
from lib.predict.analytic import roofline
from lib.predict.analytic.roofline import Roof
from lib.predict.composed import model_file as model_file_of_networks
from lib.predict.composed.cards import siblings
from lib.predict.composed.model_file import Composed
from lib.predict.networks import composition, resident
from lib.predict.networks.composition import Composition, Estimate
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import RETRAIN, CostModel
from lib.predict.power import model as power_model
from lib.predict.power.model import PowerModel
from lib.predict.transfer import ANY_GPU
from lib.work import dtypes

SHIPPED = paths.REFERENCE / "models"
_SUFFIX, _CPU = ".json.gz", transfer_cpu.CPU
MAKERS, _NEAREST = frozenset(("nvidia", "tesla", "amd")), 3  # words of a name that tell no card; names in an error
MOST = 0.5  # of the predicted time, and it bounds the work


def path_of(device: str, dtype: str, folder: Path | None = None) -> Path:
    """Return where the model of a device and element type lies."""
    return (folder or paths.MODELS) / f"{device}_{dtype}{_SUFFIX}"


def model_files(shipped: bool = False) -> dict[tuple[str, str], Path]:
    """Return every model file by (device, element type); one that was calibrated here stands before a shipped one.

    ``shipped``: these alone. Raises InputError for a file that is named as no model is.
    """
    folders = (SHIPPED,) if shipped else (SHIPPED, paths.MODELS)
    return {key_of(path): path for folder in folders for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def cpu_name(machine_name: str, hardware_id: str) -> str:
    """Return how the model of a machine's CPU is called: by the machine's name, and its hardware at the end."""
    stem = re.sub(r"[^a-z0-9]+", "-", machine_name.lower()).strip("-")
    return f"{_CPU}{stem}" if stem.endswith(f"-{hardware_id}") else f"{_CPU}{stem}-{hardware_id}"


def cpu_here() -> str:
    """Return how this machine's CPU is called in the names of its files."""
    return f"{_CPU}{machine.name()}"


def trained_folder(folder: Path, device: str) -> Path:
    """Return where the model that is trained of a device of a reference machine lies: a committed CPU's ships.

    All others stay with their machine, beside those that were calibrated there and came with its bundle.
    """
    ships = folder.parent == paths.REFERENCE and device.startswith(_CPU)
    return SHIPPED if ships else folder / "trained"


def machine_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the model files of a reference machine by (cpu or GPU's id, element type).

    Of one that was calibrated there and one that was trained here, the one that erred less on what it was not fitted to:
    random configurations there, held-out shapes here.
    """
    committed = sorted(SHIPPED.glob(f"{_CPU}*{_SUFFIX}")) if folder.parent == paths.REFERENCE else []
    shipped = [path for path in committed if (own := key_of(path)[0]) == cpu_name(folder.name, own.rpartition("-")[2])]
    several: dict[tuple[str, str], list[Path]] = {}
    for path in (*folder.glob(f"models/*{_SUFFIX}"), *folder.glob(f"trained/*{_SUFFIX}"), *shipped):
        device, dtype = key_of(path)
        several.setdefault(("cpu" if device.startswith(_CPU) else device, dtype), []).append(path)
    return {key: paths_of[0] if len(paths_of) == 1 else min(paths_of, key=_held_out) for key, paths_of in several.items()}


def _held_out(path: Path) -> tuple[bool, float]:
    """Return whether a file is damaged, and the MAPE of its model on held-out points, in %; inf where it does not say."""
    try:
        held_out = load(path).facts.get("held_out")
    except InputError:
        return True, math.inf
    return False, float(held_out.get("mape", math.inf)) if isinstance(held_out, dict) else math.inf


def key_of(path: Path) -> tuple[str, str]:
    """Return device and element type from a file's name; InputError where it is named as no model is."""
    device, _, dtype = path.name.removesuffix(_SUFFIX).rpartition("_")
    if not device or dtype not in dtypes.NAMES:
        raise InputError(f"{path} is named as no model is, <device>_<element type>{_SUFFIX}, such as t4_fp32{_SUFFIX}; rename "
                         "or remove it")
    return device, dtype


def load(path: Path) -> CostModel:
    """Return the model of a file of the registry; InputError where it is damaged, lacks facts, or is not what its name says."""
    device, dtype = key_of(path)
    model = CostModel.load(path)
    needed = ("dtype", "latency_type", "launch_ms", *(() if device == ANY_GPU else ("hardware_id", "peak_gflops", "peak_gbps")))
    missing = [name for name in needed if name not in model.facts]
    if missing:
        raise InputError(f"{path} lacks the facts {choices(missing)}, without which nothing is predicted; {RETRAIN}")
    if (model.device, model.facts["dtype"]) != (device, dtype):
        raise InputError(f"{path} holds a {model.facts['dtype']} model of {model.device}, not what its name says; rename it")
    of_cpu = device.startswith(_CPU)
    if of_cpu and not device.endswith(f"-{model.facts['hardware_id']}"):
        raise InputError(f"{path} was fitted on other hardware, {model.facts['hardware_id']}, than its name says; calibrate "
                         "again")
    if (model.chip is None) != (of_cpu or device == ANY_GPU):
        kind = "CPU" if of_cpu else "GPU"
        raise InputError(f"{path} is named as that of a {kind}, and holds that of another device type")
    if any(set(fitted["rates"]) != set(composition.TERMS) for fitted in model.compositions.values()):
        raise InputError(f"{path}: a composition has other rates than {choices(composition.TERMS)}; {RETRAIN}")
    if any(set(fitted["rates"]) != set(resident.TERMS) for fitted in model.resident.values()):
        raise InputError(f"{path}: resident memory has other rates than {choices(resident.TERMS)}; {RETRAIN}")
    return model


@dataclass(frozen=True)
class Predictor:
    """A device that can be predicted: its model, and what is known of it besides.

    ``origin`` names the machine that the model was trained on where that is another one: then every answer is zero-shot.
    ``shipped``: whatever was calibrated here is left aside.
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
        """Give the networks that were measured end to end on this device, or None."""
        if self.model.facts.get("hardware_id", "vendor:").startswith("vendor:"):
            return None
        folders = archive.machines(imported=bool(self.machine)).values()
        own = [self._own(store.read_own(path, "networks")) for folder in folders for path in archive.networks_files(folder)]
        return pd.concat(own, ignore_index=True) if own else None

    def _own(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that were measured on this very device; on a CPU with as many threads as its model answers for."""
        facts = self.model.facts
        own = table["device"].isin(facts.get("devices") or ["cpu"]) & (table["hardware_id"] == facts.get("hardware_id"))
        threads = facts.get("threads") if self.model.chip is None else None
        return table[own & (table["threads"] == threads)] if threads else table[own]

    @property
    def kind(self) -> str:
        """Return what the device is: ``cpu``, or a GPU's id in params/devices.yaml."""
        return self.device.partition("@")[0]

    @property
    def device_type(self) -> str:
        """Return cpu or cuda, as whose kernels work is captured: of a GPU the model knows the chip."""
        return "cuda" if self.model.chip else "cpu"

    @property
    def machine(self) -> str:
        """Return the reference machine whose device it is; empty for a device of this one, and for a GPU of its vendor."""
        return self.device.partition("@")[2]

    @cached_property
    def measured_operators(self) -> pd.DataFrame:
        """Give the operators that were measured on this device in the state that its model answers for, and repeated well."""
        facts, machines = self.model.facts, archive.machines(imported=True)
        folders = {name: machines.get(name.partition("/")[0]) for name in ([] if self.origin else facts.get("sweeps", []))}
        files = [path for name, folder in folders.items() if folder
                 and (path := folder.parent / name / "sweep.parquet").is_file()]
        same = {name: facts[name] for name in ("dtype", "cache", "latency_type") if facts.get(name)}
        same |= {"status": "ok", "verdict": "stable"}
        tables = [table[np.logical_and.reduce([table[name] == value for name, value in same.items()])]
                  for table in (self._own(store.read_own(path, "sweep")) for path in files)]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["flops", "bytes", "latency_ms"])

    def measured_times(self, work: Work | None = None) -> Mapping[tuple, float]:
        """Return measured times by operator key; with ``work`` of those alone that may be among its operators."""
        table = self.measured_operators
        if work is not None and len(table):
            table = table[table["flops"].isin(work.table["flops"]) & table["bytes"].isin(work.table["bytes"])]
        return composition.lookup(table)

    @cached_property
    def composed(self) -> Composed | None:
        """Give the model of whole networks that answers for this card, or None."""
        return siblings.of_card(self.kind, self.shipped) if self.model.chip and not self.machine else None

    @cached_property
    def power(self) -> PowerModel | None:
        """Give the power model of this device and element type; None where there is none, or the device is another one."""
        return None if self.origin else power_model.of_device(self.kind, self.dtype)

    def composition(self, mode: str, memory: str = "default") -> Composition:
        """Return what a network adds to its operators; where none was measured end to end, nothing, with their interval."""
        fitted = self.model.compositions.get(f"{mode} {memory}")
        return Composition(**fitted) if fitted else composition.SUM

    def estimate(self, work: Work, memory: str = "default") -> Estimate:
        """Predict a pass or step on this device; on a CPU ``memory`` says whether the process retains what it frees (kept)."""
        return composition.estimate(work, self.model, self.composition(work.mode, memory), self.measured_times(work))

    @property
    def roof(self) -> Roof:
        """Return the roof that the model knows of its device."""
        facts = self.model.facts
        return Roof(self.device, self.dtype, "vendor" if self.model.chip else "measured", facts.get("hardware_id", ""),
                    facts["peak_gflops"], {"device" if self.model.chip else "RAM": facts["peak_gbps"]},
                    launch_us=facts["launch_ms"] * 1e3)

    def roof_ms(self, work: Work) -> float:
        """Return how long the operators take at their roofs, one after another."""
        return roofline.each_at_its_roof(work.flops_and_bytes, self.roof) * 1e3

    def launches_ms(self, work: Work) -> float:
        """Return how long launching every operator takes."""
        return work.calls * self.roof.launch_us / 1e3

    def bound(self, work: Work, predicted_ms: float) -> str:
        """Return what most of the time of a pass or step goes to, see ``bound_of``."""
        return self.bound_of(work.flops_and_bytes, self.launches_ms(work), predicted_ms)

    def bound_of(self, parts: np.ndarray, launches_ms: float, predicted_ms: float) -> str:
        """Return what bounds operators of these FLOPs and bytes (n, 2), by most of their time: launch, or compute or memory."""
        if launches_ms > MOST * predicted_ms:
            return "launch"
        return "memory" if roofline.memory_share(parts, self.roof) > MOST else "compute"


def shipped_cpu(dtype: str) -> CostModel:
    """Return the CPU model that ships with the reference; InputError where there is none of that element type."""
    if own := shipped_cpus(dtype):
        return load(own[0])
    raise InputError(f"no {dtype} model of a CPU ships in {SHIPPED}; there are: "
                     f"{choices(map(' '.join, sorted(model_files())))}")


def shipped_cpus(dtype: str) -> list[Path]:
    """Return the files of the CPU models that ship with the reference."""
    return [path for path in sorted(SHIPPED.glob(f"{_CPU}*{_SUFFIX}")) if key_of(path)[1] == dtype]


def _of_the_reference(dtype: str) -> Predictor | None:
    """Return the CPU as the model that ships predicts it, unscaled; None for an element type that none ships of."""
    model = next(map(load, shipped_cpus(dtype)), None)
    return Predictor("cpu", dtype, model, model.device, psutil.virtual_memory().total / 1e6) if model else None


def vendor_of(name: str) -> str:
    """Return the id in params/devices.yaml of a device by the name that its driver gives; InputError has the nearest names.

    Whole names are compared, word by word: an L40S is no L4, a laptop's card not the desktop's. Only who made it is left out,
    since drivers changed how they say it.
    """
    ids = {device.name: device.id for device in load_devices().values()}
    vendor = next((id_ for stated, id_ in ids.items() if _words_of(stated) == _words_of(name)), None)
    if not vendor:
        lower = {stated.lower(): stated for stated in ids}
        nearest = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, _NEAREST, 0.0)]
        raise InputError(f"params/devices.yaml has no device named {name!r} (the nearest: {choices(nearest)}), add it there; "
                         "notebook 01_machine, with source measure, measures it and gives the entry")
    return vendor


def _listed(device: str) -> str:
    """Return the id in params/devices.yaml of this machine's card, such as cuda:0, if it has any; other names as they are."""
    if re.fullmatch(r"cuda(:\d+)?", device) and "cuda:0" in machine.devices():
        return vendor_of(machine.device_name(machine.device(device)))
    return device


def _words_of(name: str) -> list[str]:
    """Return the words of a device's name without its makers, in an order of their own: A100 80GB PCIe, A100-PCIE-80GB."""
    return sorted(set(re.findall(r"[a-z0-9.]+", name.lower())) - MAKERS)


def reference_cpus(dtype: str) -> list[CostModel]:
    """Return the models of all CPUs, imported ones too, that were trained on their machine's own sweeps, not calibrated."""
    files = [path for (device, kind), path in model_files().items() if device.startswith(_CPU) and kind == dtype]
    folders = archive.machines(imported=True).values()
    files += [own[key] for folder in folders if (key := ("cpu", dtype)) in (own := machine_files(folder))]
    models = [load(path) for path in dict.fromkeys(files)]
    return [model for model in models if transfer_cpu.CALIBRATED not in model.facts]


def _own_cpus(dtype: str, files: transfer.Files) -> list[Path]:
    """Return the files of this machine's CPU, whatever its threads: calibrated here or shipped, and those of its bundles."""
    folders, suffix = archive.machines(imported=True).values(), f"-{transfer_cpu.identity()['hardware_id']}"
    first = files.get((cpu_here(), dtype))
    several = [first, *(machine_files(folder).get(("cpu", dtype)) for folder in folders)]
    return [path for path in dict.fromkeys(several) if path and key_of(path)[0].endswith(suffix)]


def _cpu(dtype: str, files: transfer.Files) -> Predictor | None:
    """Return this machine's CPU with its own model, or else with another one's, whose answers are then zero-shot.

    With another number of threads it is another machine, of which its own model is the nearest one.
    """
    memory_mb, own = psutil.virtual_memory().total / 1e6, _own_cpus(dtype, files)
    model = next((model for model in map(load, own) if model.is_of(**transfer_cpu.identity())), None)
    if model:
        return Predictor("cpu", dtype, model, memory_mb=memory_mb)
    references = [load(path) for path in own] or reference_cpus(dtype)
    if not references:
        return None
    model = transfer_cpu.nearest(references, transfer_cpu.host())
    return Predictor("cpu", dtype, model, model.device, memory_mb)


def _gpu(vendor: VendorDevice, dtype: str, files: transfer.Files, reader: Callable[[Path], CostModel]) -> Predictor | None:
    """Return a GPU with its model, completed from others; None for an element type without a rate, or without a donor."""
    if dtype not in vendor.peak_gflops or not vendor.multiprocessors:
        return None
    model = transfer.gpu_model(vendor, dtype, files, reader)
    return Predictor(vendor.id, dtype, model, "", vendor.memory_mb, vendor.price_per_hour) if model else None


def has_cpu(dtype: str) -> bool:
    """Return whether a model of an element type answers for this machine's CPU."""
    return bool(_own_cpus(dtype, model_files()) or reference_cpus(dtype))


def _predictor(device: str, dtype: str, files: transfer.Files, vendors: Mapping[str, VendorDevice],
               reader: Callable[[Path], CostModel]) -> Predictor | None:
    gpu = vendors.get(device)
    return _cpu(dtype, files) if device == "cpu" else _gpu(gpu, dtype, files, reader) if gpu else None


def _of_machine(device: str, dtype: str, files: transfer.Files, vendors: Mapping[str, VendorDevice],
                reader: Callable[[Path], CostModel]) -> list[Predictor]:
    """Return the devices of a reference machine with a model of an element type: all (NAME), or one kind of them (cpu@NAME).

    A GPU's model is completed from others. Raises InputError where it has no such model.
    """
    kind, at, name = device.rpartition("@")
    folder = archive.machine_folder(name)
    own, several = machine_files(folder), []
    for (one, own_dtype), path in own.items():
        if own_dtype != dtype or (at and one != kind):
            continue
        if one == "cpu":
            memory_mb = archive.hardware(folder).get("memory_gib", math.inf) * 2**30 / 1e6
            several.append(Predictor(f"cpu@{name}", dtype, reader(path), memory_mb=memory_mb))
        elif one in vendors and (gpu := _gpu(vendors[one], dtype, {**files, (one, dtype): path}, reader)):
            several.append(replace(gpu, device=f"{one}@{name}"))
    if not several:
        raise InputError(f"no {dtype} model of {device}; the machine {name} has: {choices(map(' '.join, own)) or 'none'}; "
                         f"train them on what was measured there: python -m lib models --train {name}")
    return several


def predictor(device: str, dtype: str) -> Predictor | None:
    """Return a device that can be predicted, or None where it has no model; InputError for a file that holds none."""
    return _predictor(device, dtype, model_files(), load_devices(), load)


def for_devices(devices: Sequence[str], dtype: str, shipped: bool = False,
                reader: Callable[[Path], CostModel] | None = None) -> list[Predictor]:
    """Return the devices that can be predicted for an element type: those named, or all that have a model of any type.

    A card of this machine may be named as it is here (cuda:0). ``shipped``: by the models of the reference, whatever was
    measured or calibrated on this machine; ``reader`` reads the file of a model (default: each once). Raises InputError for a
    device that has none, listing those that do and how to calibrate, for one named twice, and for a file that holds no model.
    """
    devices = [_listed(device) for device in devices]
    if len(set(devices)) < len(devices):
        raise InputError(f"a device is named twice: {choices(devices)}; name each once")
    files, vendors, reader = model_files(shipped), load_devices(), reader or cache(load)  # a donor serves several
    measured = set(model_file_of_networks.files_of_cards()) if dtype in dtypes.AUTOCAST else set()
    usual = ["cpu", *sorted(({device for device, _ in files} | measured) & set(vendors))]
    predictors = []
    for device in devices or usual:
        if device not in usual and device not in vendors and device.rpartition("@")[2] in archive.machines(imported=True):
            predictors += _of_machine(device, dtype, files, vendors, reader)
            continue
        one = _of_the_reference(dtype) if shipped and device == "cpu" else _predictor(device, dtype, files, vendors, reader)
        if one:
            predictors.append(replace(one, shipped=shipped))
        elif devices:
            raise InputError(f"no {dtype} model of a device {device!r}; there are models of: {choices(usual)}, and of the "
                             f"machines: {choices(archive.machines(imported=True))}; any GPU of "
                             f"params/devices.yaml is predicted zero-shot where {ANY_GPU} has its element type; for a machine "
                             "of your own, run there: python -m lib calibrate")
    if not predictors:
        raise InputError(f"no {dtype} models in {SHIPPED} or {paths.MODELS}; run: python -m lib calibrate")
    return predictors
