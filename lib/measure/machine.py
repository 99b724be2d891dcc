"""The inventory of this machine, its devices, and the two ids that every measured row carries."""

import importlib.util
import json
import os
import platform
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import torch

from lib import store
from lib.errors import InputError, choices, is_broken_device, is_out_of_memory, one_line
from lib.measure import worker
from lib.measure.gpus.card import cuda_uuid, driver, number_of
from lib.names import known

_INSTRUCTION_SETS = {"onednn": "ONEDNN_MAX_CPU_ISA", "aten": "ATEN_CPU_CAPABILITY",
                     "mkl": "MKL_ENABLE_INSTRUCTIONS"}
_INSTRUCTIONS = {"bf16": {"amx_bf16", "avx512_bf16"},
                 "int8": {"amx_int8", "avx512_vnni", "avx_vnni"}}
_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "KMP_AFFINITY",
              "CUBLAS_WORKSPACE_CONFIG", "ONEDNN_MAX_CPU_ISA", "LD_PRELOAD", "MALLOC_MMAP_MAX_",
              "MALLOC_TRIM_THRESHOLD_")
_RSS_UNIT = 1 if platform.system() == "Darwin" else 1024


class DeviceLostError(InputError):
    """A device that broke while it was measured."""


def exact_fp32() -> None:
    """Compute fp32 as fp32 on GPUs: TF32 is a dtype of its own, which ceilings measure by name."""
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def fit_quota() -> None:
    """Use no more CPU threads than this process may keep busy, unless OMP_NUM_THREADS is set."""
    allowed = len(worker.allowed_cores())
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > allowed:
        torch.set_num_threads(allowed)


exact_fp32()  # whoever measures, in whichever process, imports this module
fit_quota()


def _proc_cpuinfo() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


@cache
def cache_bytes() -> dict[str, int]:
    """Return the size of one L1d, L2 and L3 cache in bytes, as Linux states them."""
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = ((index / name).read_text().strip()
                                 for name in ("type", "level", "size"))
            number, unit = re.fullmatch(r"(\d+)([KMG]?)", size).groups()
        except (OSError, AttributeError):
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(number) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return dict(sorted(sizes.items()))


def _gpus() -> list[store.Facts]:
    """Return the GPUs of this run as its leader lists them, else those that CUDA shows."""
    if listed := os.environ.get(worker.GPUS):
        return json.loads(listed)
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(index)
        gpus.append({"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30),
                     "compute_capability": f"{gpu.major}.{gpu.minor}",
                     "multiprocessors": gpu.multi_processor_count})
    return gpus


def _limits() -> store.Facts:
    """Return the limits of this process: instruction sets by library, cores it may use."""
    sets = {library: os.environ.get(name, "").strip().lower()
            for library, name in _INSTRUCTION_SETS.items()}
    sets = {library: value for library, value in sets.items() if value not in ("", "all")}
    limits = {"instruction_sets": sets} if sets else {}
    usable = worker.usable_cores()
    return limits | {"usable_cores": usable} if usable < (os.cpu_count() or 1) else limits


def instructions(dtype: str) -> tuple[str, ...]:
    """Return this CPU's instructions for bf16 or int8; none if libraries may not use them."""
    if "instruction_sets" in _limits():
        return ()
    flags = set(_proc_cpuinfo().get("flags", "").split())
    return tuple(sorted(flags & _INSTRUCTIONS.get(dtype, set())))


def precision(wanted: str, where: torch.device) -> str:
    """Return a precision's dtype; ``amp`` is fp16 on CUDA, bf16 on CPUs that have it, else fp32."""
    if wanted != "amp":
        return wanted
    if where.type == "cuda":
        return "fp16"
    return "bf16" if where.type == "cpu" and instructions("bf16") else "fp32"


@cache
def hardware() -> store.Facts:
    """Return what ``hardware_id`` is made of; nothing in it drifts.

    A process limited to older instructions or to some cores is another machine.
    """
    entries = _proc_cpuinfo()
    cpu = entries.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in entries:
        cpu += (f" (family {entries['cpu family']}, model {entries['model']}, "
                f"stepping {entries['stepping']})")
    return {"cpu": cpu, "arch": platform.machine(), "cores": os.cpu_count(),
            "cache_kib": {level: size // 1024 for level, size in cache_bytes().items()},
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
            "gpus": _gpus(), **_limits()}


def software() -> store.Facts:
    """Return what ``software_id`` is made of: versions, CPU threads and math settings."""
    cudnn, has_gpu = torch.backends.cudnn, torch.cuda.is_available()
    return {"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}",
            "torch": torch.__version__, "torchvision": _torchvision(), "cuda": torch.version.cuda,
            "cudnn": cudnn.version() if has_gpu else None,
            "driver": driver() if has_gpu else None, "threads": torch.get_num_threads(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_tf32": cudnn.allow_tf32, "cudnn_benchmark": cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ}}


@cache
def _torchvision() -> str:
    """Return torchvision's version without importing it, which takes most of a second."""
    origin = Path(importlib.util.find_spec("torchvision").origin)
    text = origin.with_name("version.py").read_text()
    return re.search(r"__version__ = '([^']+)'", text).group(1)


def ids() -> dict[str, str]:
    """Return ``hardware_id`` and ``software_id`` of this process as it is set up now."""
    return {"hardware_id": store.digest(hardware()), "software_id": store.digest(software())}


def name() -> str:
    """Return a readable name of this machine, unique by its hardware: ``amd-epyc-2c-1a2b3c4d``."""
    facts = hardware()
    cpu = re.sub(r"\(.*?\)|\bprocessor\b|\d+-core\b|\bcpu\b|@.*", "", facts["cpu"], flags=re.I)
    parts = [cpu, f"{facts.get('usable_cores', facts['cores'])}c",
             *dict.fromkeys(facts.get("instruction_sets", {}).values()),
             *{gpu["name"] for gpu in facts["gpus"]}, store.digest(facts)]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def devices() -> list[str]:
    """Return the ids of the devices that are here: ``cpu``, ``cuda:0``, ..., ``mps``."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *(f"cuda:{index}" for index in range(count)), *mps]


def memory_mb(name: str) -> float:
    """Return the memory of a device that is here, in 10^6 bytes: a GPU's own, else the host's."""
    if name.startswith("cuda"):
        return torch.cuda.get_device_properties(name).total_memory / 1e6
    return psutil.virtual_memory().total / 1e6


def device(wanted: str) -> torch.device:
    """Return the device of an id; ``auto`` is the first accelerator, else the CPU.

    Raises InputError listing the devices that are here.
    """
    here = devices()
    usual = {"auto": here[1] if len(here) > 1 else "cpu", "cuda": "cuda:0", "cpu": "cpu"}
    chosen = usual.get(known(wanted, usual), wanted)
    if chosen not in here:
        raise InputError(f"device {wanted!r} is not here; this machine has: {choices(here)} "
                         "(or auto)")
    return torch.device(chosen)


def several(wanted: str) -> list[str]:
    """Return the ids of ``wanted``: one device, several with commas, auto, or all of this machine.

    Raises InputError for one that is not here or is named twice.
    """
    if wanted == "all":
        return devices()
    chosen = [str(device(name.strip())) for name in wanted.split(",")]
    doubled = sorted({name for name in chosen if chosen.count(name) > 1})
    if doubled:
        raise InputError(f"devices {wanted!r}: {choices(doubled)} is there twice; "
                         "name each device once")
    return chosen


def levels(device: torch.device, threads: int) -> dict[str, int]:
    """Return the bytes that each cache level holds for ``threads`` cores, the nearest first."""
    if device.type == "cuda":
        return {"L2": torch.cuda.get_device_properties(device).L2_cache_size}
    return {level: size if level == "L3" else size * threads
            for level, size in cache_bytes().items()}


def use(where: torch.device) -> None:
    """Make a GPU the current device; InputError for one that does not let this process in."""
    if where.type != "cuda":
        return
    try:
        torch.cuda.set_device(where)
        torch.cuda.mem_get_info(where)
    except RuntimeError as error:
        raise InputError(f"{where} cannot be used: {one_line(error)}") from None


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Compute on so many threads meanwhile; 0: as many as before."""
    before = torch.get_num_threads()
    if threads not in (0, before):
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads not in (0, before):
            torch.set_num_threads(before)


@contextmanager
def working(where: torch.device) -> Iterator[None]:
    """Raise InputError in one line if memory runs out, DeviceLostError if a GPU breaks."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_broken_device(error):
            raise DeviceLostError(f"{where} broke; what was measured until then is kept: "
                                  f"{one_line(error)}") from None
        if is_out_of_memory(error):
            raise InputError(f"{where} has too little memory left: {one_line(error)}") from None
        raise


def card(where: torch.device) -> str:
    """Return the UUID of a GPU; empty for other devices, and where torch does not tell."""
    return cuda_uuid(number_of(str(where))) if where.type == "cuda" else ""


def free_bytes(where: torch.device) -> int:
    """Return the memory that is free on a device now, in bytes: a GPU's own, else the host's."""
    if where.type == "cuda":
        return torch.cuda.mem_get_info(where)[0]
    return psutil.virtual_memory().available


def own_hardware(name: str, facts: store.Facts | None = None) -> store.Facts:
    """Return the part of a machine's hardware that a device is: a GPU's entry, else all but GPUs.

    ``facts``: the hardware of another machine. Empty for a GPU that is not in it.
    """
    number, facts = number_of(name), facts or hardware()
    if number is None:
        return {fact: value for fact, value in facts.items() if fact != "gpus"}
    return facts["gpus"][number] if number < len(facts["gpus"]) else {}


def kind(name: str) -> str:
    """Return the model of a GPU of this machine as a text, or the id of another device."""
    return name if number_of(name) is None else str(own_hardware(name) or name)


def tf32(where: torch.device) -> bool:
    """Return whether torch may multiply fp32 as TF32 on a device, in GEMMs or in convolutions."""
    allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return where.type == "cuda" and allowed


def device_name(where: torch.device) -> str:
    """Return the name of a device for people."""
    return torch.cuda.get_device_name(where) if where.type == "cuda" else hardware()["cpu"]


def identity() -> store.Facts:
    """Return the ids with what they were made of, for provenance."""
    return {**ids(), "machine": name(), "hardware": hardware(), "software": software()}


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process so far, in 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / 1e6
