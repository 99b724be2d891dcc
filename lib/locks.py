"""Locks: one writer per file, one measurement per device, until the process that holds one ends."""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lib import files
from lib.errors import InputError

MASK = "CUDA_VISIBLE_DEVICES"
_SHARED = ("/run/lock", "/dev/shm", "/tmp")
PATIENCE_S = 600.0  # how long a measurement waits until another one ends


class HeldError(InputError):
    """Raised when another process did not release a lock in time."""


def host_folder() -> Path:
    """Return the folder of the locks of this host's devices, which every user can open.

    It is the same for every user, job and TMPDIR; the variable ``LIB_LOCKS`` names another one,
    whose mode stays as it is.
    """
    if named := os.environ.get("LIB_LOCKS"):
        return files.folder(Path(named))
    places = [place for place in _SHARED if os.path.isdir(place)
              and os.stat(place).st_mode & 0o002 and os.access(place, os.W_OK)]
    folder = files.folder(Path(places[0] if places else tempfile.gettempdir(), "measured-devices"))
    with suppress(PermissionError):  # another user's
        folder.chmod(0o777)
    return folder


def card(number: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return the host's name of ``cuda:<number>``: an index, or its id in CUDA_VISIBLE_DEVICES.

    Raises InputError where CUDA_VISIBLE_DEVICES leaves fewer cards.
    """
    mask = environment.get(MASK)
    if mask is None:
        return str(number)
    shown = []
    for name in map(str.strip, mask.split(",")):
        if name in ("", "-1"):  # CUDA reads no further
            break
        shown.append(name)
    if number >= len(shown):
        raise InputError(f"there is no cuda:{number}: {MASK} is {mask!r}, which leaves "
                         f"{len(shown)} cards")
    return shown[number]


def uuid(card_name: str) -> str:
    """Return the UUID of a card given by index or short UUID; the name itself without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception:  # no NVML, or a driver that fails
        return card_name
    for index in range(count):
        with suppress(pynvml.NVMLError):  # a lost card has no UUID
            found = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            if card_name == str(index) or found.startswith(card_name):
                return found
    return card_name


@contextmanager
def device(name: str, timeout_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold this host's lock of one device, so that two measurements never share it.

    Raises HeldError, an InputError, when another process still holds it after ``timeout_s``.
    """
    kind, _, number = name.partition(":")
    if kind == "cuda" and number.isdecimal():
        name = f"cuda-{uuid(card(int(number)))}"
    path = host_folder() / f"measuring-{re.sub('[^A-Za-z0-9_.-]', '-', name)}.lock"
    with _held(path, timeout_s, f"device {name} is being measured by another process", mode=0o666):
        yield


@contextmanager
def writer(path: Path, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file or folder that one process writes at a time.

    Raises HeldError, an InputError, when another process still holds it after ``timeout_s``.
    """
    files.folder(path.parent)
    why = f"{path} is being written by another process"
    with _held(path.with_name(f".{path.name}.lock"), timeout_s, why):
        yield


@contextmanager
def writers(targets: Iterable[Path], timeout_s: float) -> Iterator[None]:
    """Hold the locks of several files or folders, taken in one order so that none waits in turn."""
    with ExitStack() as locks:
        for target in sorted(set(targets)):
            locks.enter_context(writer(target, timeout_s))
        yield


@contextmanager
def _held(path: Path, timeout_s: float, why: str, **options: int) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout_s, **options)
    with files.writing(path):
        try:
            lock.acquire()
        except Timeout:
            raise HeldError(f"{why} (lock {path}); try again when it ends") from None
    try:
        yield
    finally:
        lock.release()
