"""The inventory of this machine, its devices, and the two ids that every measured row carries."""

import importlib.util
import json
import os
import platform
import re
import resource
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from lib import locks, store
from lib.errors import InputError, choices, is_broken_device, is_out_of_memory, one_line
from lib.measure import worker
from lib.measure.gpus.card import cuda_uuid, management, number_of
from lib.names import known

_INSTRUCTION_SETS = {"onednn": "ONEDNN_MAX_CPU_ISA", "aten": "ATEN_CPU_CAPABILITY", "mkl": "MKL_ENABLE_INSTRUCTIONS"}
_INSTRUCTIONS = {"bf16": {"amx_bf16", "avx512_bf16"}, "int8": {"amx_int8", "avx512_vnni", "avx_vnni"}}
_RSS_UNIT = 1 if platform.system() == "Darwin" else 1024


class DeviceLostError(InputError):
    """A device that could be measured cannot be used any more; the message says how it ended."""


def exact_fp32() -> None:
    """Have GPUs compute fp32 as fp32, in GEMMs and in convolutions; nothing where there is none.

    It is the one policy of all that is measured here: TF32 is an element type of its own, which ceilings measure by its name.
    """
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def fit_quota() -> None:
    """Have torch use no more CPU threads than this process may keep busy, unless OMP_NUM_THREADS says how many."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > (allowed := len(worker.allowed_cores())):
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
    """Return the size of one L1d, L2 and L3 cache in bytes, as the kernel states them; empty where it does not."""
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level = (index / "type").read_text().strip(), (index / "level").read_text().strip()
            number, unit = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip()).groups()
        except (OSError, AttributeError):
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(number) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return dict(sorted(sizes.items()))


def _gpus() -> list[store.Facts]:
    """Return the GPUs of this run, as its leader lists them; without a leader those that CUDA shows to this process."""
    if listed := os.environ.get(worker.GPUS):
        return json.loads(listed)
    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": p.name, "memory_gib": round(p.total_memory / 2**30), "compute_capability": f"{p.major}.{p.minor}",
             "multiprocessors": p.multi_processor_count} for p in properties]


def _limits() -> store.Facts:
    """Return what this process was limited to when it began: instruction sets by library, cores by affinity or quota."""
    sets = {library: value for library, name in _INSTRUCTION_SETS.items()
            if (value := os.environ.get(name, "").strip().lower()) not in ("", "all")}
    usable, every = worker.usable_cores(), os.cpu_count() or 1
    return ({"instruction_sets": sets} if sets else {}) | ({"usable_cores": usable} if usable < every else {})


def instructions(dtype: str) -> tuple[str, ...]:
    """Return the instructions of this CPU that compute in bf16 or int8; none where libraries are limited to older ones."""
    flags = set() if "instruction_sets" in _limits() else set(_proc_cpuinfo().get("flags", "").split())
    return tuple(sorted(flags & _INSTRUCTIONS.get(dtype, set())))


def precision(wanted: str, where: torch.device) -> str:
    """Return what a precision is on a device: of ``amp`` fp16 on CUDA, bf16 on a CPU with instructions for it, else fp32."""
    types = {"cuda": "fp16", "cpu": "bf16" if instructions("bf16") else "fp32"}
    return types.get(where.type, "fp32") if wanted == "amp" else wanted


@cache
def hardware() -> store.Facts:
    """Return what ``hardware_id`` is made of: processor, cores, caches, memory, GPUs, limits. Nothing that drifts.

    A processor whose libraries are limited to older instructions (the variables in ``_INSTRUCTION_SETS``), or of which this
    process may use some cores only, is another machine; one without limits has no entries for them.
    """
    entries = _proc_cpuinfo()
    cpu = entries.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in entries:
        cpu += f" (family {entries['cpu family']}, model {entries['model']}, stepping {entries['stepping']})"
    return {"cpu": cpu, "arch": platform.machine(), "cores": os.cpu_count(),
            "cache_kib": {level: size // 1024 for level, size in cache_bytes().items()},
            "memory_gib": round(psutil.virtual_memory().total / 2**30), "gpus": _gpus(), **_limits()}


def software() -> store.Facts:
    """Return what ``software_id`` is made of: versions, CPU threads and the math settings of this process."""
    names = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "KMP_AFFINITY", "CUBLAS_WORKSPACE_CONFIG",
             "ONEDNN_MAX_CPU_ISA", "LD_PRELOAD", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
    return {"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}",
            "torch": torch.__version__, "torchvision": _torchvision(), "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None, "driver": _driver(),
            "threads": torch.get_num_threads(), "matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_tf32": torch.backends.cudnn.allow_tf32, "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "environment": {name: os.environ[name] for name in names if name in os.environ}}


@cache
def _torchvision() -> str:
    """Return torchvision's version as it states it, without importing it, which takes most of a second."""
    stated = Path(importlib.util.find_spec("torchvision").origin).with_name("version.py").read_text()
    return re.search(r"__version__ = '([^']+)'", stated).group(1)


def _managed(function: str) -> Any:
    """Call a function of NVML that takes no arguments; None without NVML, and where it fails."""
    try:
        nvml = management()
    except InputError:
        return None
    try:
        return getattr(nvml, function)()
    except nvml.NVMLError:
        return None


@cache
def _driver() -> str | None:
    return _managed("nvmlSystemGetDriverVersion") if torch.cuda.is_available() else None


def ids() -> dict[str, str]:
    """Return ``hardware_id`` and ``software_id`` of this process as it is set up now."""
    return {"hardware_id": store.digest(hardware()), "software_id": store.digest(software())}


def name() -> str:
    """Return a readable name of this machine that is unique by its hardware: ``amd-epyc-2c-1a2b3c4d``.

    With limits also by these: ``amd-epyc-1c-avx2-5e6f7a8b``.
    """
    facts = hardware()
    parts = [re.sub(r"\(.*?\)|\bprocessor\b|\d+-core\b|\bcpu\b|@.*", "", facts["cpu"], flags=re.I)]
    parts += [f"{facts.get('usable_cores', facts['cores'])}c", *dict.fromkeys(facts.get("instruction_sets", {}).values())]
    parts += [*{gpu["name"] for gpu in facts["gpus"]}, store.digest(facts)]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def devices() -> list[str]:
    """Return the ids of the devices that are here: ``cpu``, ``cuda:0``, ..., ``mps``."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *cuda, *mps]


def overlooked(measured: Collection[str]) -> str:
    """Say which cards of this machine are not among the ``measured`` devices, or that torch can use none; empty for neither."""
    cards = [name for name in devices() if name.startswith("cuda")]
    if others := [name for name in cards if name not in measured]:
        return f"Not measured: {choices(others)} (--devices all measures every card)."
    hidden = os.environ.get(locks.MASK) in ("", "-1")
    if cards or hidden or not (count := _managed("nvmlDeviceGetCount")):
        return ""
    cuda = torch.version.cuda
    why = f"it has CUDA {cuda}, which may need a newer driver; or install torch for an older CUDA" if cuda else "it has no CUDA"
    return f"The driver, {_managed('nvmlSystemGetDriverVersion')}, lists {count} NVIDIA cards, and torch can use none: {why}."


def memory_mb(name: str) -> float:
    """Return the memory of a device that is here, in 10^6 bytes: a GPU's own, else the host's."""
    total = torch.cuda.get_device_properties(name).total_memory if name.startswith("cuda") else psutil.virtual_memory().total
    return total / 1e6


def device(wanted: str) -> torch.device:
    """Return the device of an id; ``auto`` is the first accelerator, else the CPU; ``cuda`` is ``cuda:0``.

    Raises InputError listing the devices that are here.
    """
    here = devices()
    usual = {"auto": here[1] if len(here) > 1 else "cpu", "cuda": "cuda:0", "cpu": "cpu"}
    chosen = usual.get(known(wanted, usual), wanted)
    if chosen not in here:
        raise InputError(f"device {wanted!r} is not here; this machine has: {choices(here)} (or auto)")
    return torch.device(chosen)


def several(wanted: str) -> list[str]:
    """Return the ids of ``wanted``: one device, several with commas, auto, or all of this machine.

    Raises InputError for one that is not here, or is there twice: it would wait for its own lock.
    """
    if wanted == "all":
        return devices()
    chosen = [str(device(name.strip())) for name in wanted.split(",")]
    doubled = sorted({name for name in chosen if chosen.count(name) > 1})
    if doubled:
        raise InputError(f"devices {wanted!r}: {choices(doubled)} is there twice; name each device once")
    return chosen


def levels(device: torch.device, threads: int) -> dict[str, int]:
    """Return the bytes that each level of the memory holds for ``threads`` cores, from the nearest to the last cache."""
    if device.type == "cuda":
        return {"L2": torch.cuda.get_device_properties(device).L2_cache_size}
    caches = cache_bytes()
    return {level: size if level == "L3" else size * threads for level, size in caches.items()}


def use(where: torch.device) -> None:
    """Make an accelerator the current one, so that events and allocations go to it; nothing on the CPU.

    Raises InputError for a GPU that does not let this process in.
    """
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
    """Tell in one line, as an InputError, that memory ran out while work on a device went on, or that a GPU broke.

    Raises DeviceLostError for what broke.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_broken_device(error):
            raise DeviceLostError(f"{where} broke; what was measured until then is kept: {one_line(error)}") from None
        if is_out_of_memory(error):
            raise InputError(f"{where} has too little memory left: {one_line(error)}") from None
        raise


def card(where: torch.device) -> str:
    """Return the UUID of a GPU; empty for other devices, and where torch does not tell."""
    return cuda_uuid(number_of(str(where))) if where.type == "cuda" else ""


def free_bytes(where: torch.device) -> int:
    """Return the memory that is free on a device now, in bytes: a GPU's own, else the host's."""
    return torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else psutil.virtual_memory().available


def own_hardware(name: str, facts: store.Facts | None = None) -> store.Facts:
    """Return the part of a machine's hardware (default: this one's) that a device is: a GPU's entry, else all but the GPUs.

    Empty for a GPU that is not in it.
    """
    number, facts = number_of(name), facts or hardware()
    if number is None:
        return {fact: value for fact, value in facts.items() if fact != "gpus"}
    return facts["gpus"][number] if number < len(facts["gpus"]) else {}


def kind(name: str, facts: store.Facts | None = None) -> str:
    """Return the kind of a device: the entry of a GPU's model in a machine's hardware (default: this one), else the id."""
    return name if number_of(name) is None else str(own_hardware(name, facts) or name)


def tf32(where: torch.device) -> bool:
    """Return whether torch may multiply fp32 as TF32 on a device, in GEMMs or in convolutions."""
    return where.type == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)


def device_name(where: torch.device) -> str:
    """Return the name of a device for people."""
    return torch.cuda.get_device_name(where) if where.type == "cuda" else hardware()["cpu"]


def identity() -> store.Facts:
    """Return the ids with what they were made of, for provenance."""
    return {**ids(), "machine": name(), "hardware": hardware(), "software": software()}


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process so far, in 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / 1e6
