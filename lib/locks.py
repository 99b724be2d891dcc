"""Locks: one writer per file, one measurement per device. The system releases them when the process ends, also if killed."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lib import files
from lib.errors import InputError, choices

MASK = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 600.0  # how long a measurement waits until another one ends
_HOST = ("/run/lock", "/dev/shm", "/tmp")
_EVERYBODY, _ALL = 0o666, 0o777


class HeldError(InputError):
    """Raised when another process did not release a lock in time."""


def host_folder() -> Path:
    """Return the folder of the locks of this host's devices, the same for every user, job and TMPDIR.

    ``LIB_LOCKS`` names another. Raises InputError where there is none that everybody may write to.
    """
    if named := os.environ.get("LIB_LOCKS"):
        return files.folder(Path(named))
    for place in _HOST:
        if Path(place).is_dir() and os.stat(place).st_mode & 0o1777 == 0o1777 and os.access(place, os.W_OK):
            return _open_to_all(Path(place) / "measured-devices")
    raise InputError(f"no folder for the locks of devices: {choices(_HOST)} are not open to everybody; name one in LIB_LOCKS")


def _open_to_all(folder: Path) -> Path:
    """Return a folder in which everybody may open everybody's locks.

    In a sticky folder, such as those it lies in, Linux refuses that to all but a file's owner (``fs.protected_regular``).
    """
    with files.writing(folder):
        folder.mkdir(exist_ok=True)
        if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o7777 != _ALL:
            folder.chmod(_ALL)
    return folder


def card(number: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return the host's name of a process's ``cuda:<number>``: an index, or the id in CUDA_VISIBLE_DEVICES.

    Raises InputError where CUDA_VISIBLE_DEVICES leaves fewer cards.
    """
    mask = environment.get(MASK)
    if mask is None:
        return str(number)
    names = [name.strip() for name in mask.split(",")]
    shown = names[:next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))]  # as CUDA reads it
    if number >= len(shown):
        raise InputError(f"there is no cuda:{number}: {MASK} is {mask!r}, which leaves {len(shown)} cards")
    return shown[number]


def uuid(card_name: str) -> str:
    """Return the UUID of a card given by index or abbreviated UUID; unchanged if NVML does not know it."""
    try:
        import pynvml
    except ImportError:
        return card_name
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except (pynvml.NVMLError, AttributeError):
        return card_name
    for index in range(count):
        with suppress(pynvml.NVMLError):  # a card that is lost has none
            full_uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            if card_name == str(index) or full_uuid.startswith(card_name):
                return full_uuid
    return card_name


@contextmanager
def device(name: str, timeout_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold this host's lock of one device, so that two measurements never share it.

    Raises HeldError, an InputError, when another process still holds it after ``timeout_s``.
    """
    kind, _, number = name.partition(":")
    named = f"cuda-{uuid(card(int(number)))}" if kind == "cuda" and number.isdecimal() else name
    path = host_folder() / f"measuring-{re.sub('[^A-Za-z0-9_.-]', '-', named)}.lock"
    with _held(path, timeout_s, f"device {name} is being measured by another process", mode=_EVERYBODY):
        yield


@contextmanager
def writer(path: Path, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file or folder that one process writes to at a time; the lock lies beside it.

    Raises HeldError, an InputError, when another process still holds it after ``timeout_s``.
    """
    files.folder(path.parent)
    with _held(path.with_name(f".{path.name}.lock"), timeout_s, f"{path} is being written by another process"):
        yield


@contextmanager
def writers(targets: Iterable[Path], timeout_s: float) -> Iterator[None]:
    """Hold the locks of several files or folders, as ``writer`` does of one.

    Always in one order: two processes that want the same ones never wait for each other.
    """
    with ExitStack() as locks:
        for target in sorted(set(targets)):
            locks.enter_context(writer(target, timeout_s))
        yield


@contextmanager
def _held(path: Path, timeout_s: float, why: str, **options: int) -> Iterator[None]:
    """Hold a lock; its file has the permissions that the umask leaves, unless ``options`` have a ``mode``."""
    from filelock import FileLock, Timeout

    with files.writing(path):
        lock = FileLock(path, timeout=timeout_s, **options)
        try:
            lock.acquire()
        except Timeout:
            raise HeldError(f"{why} (lock {path}); try again when it ends") from None
    try:
        yield
    finally:
        lock.release()
