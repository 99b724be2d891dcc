"""Writing of files: complete or not at all, without overwriting unless asked, with one-line errors."""

import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lib.errors import InputError

MODE = 0o644
PRIVATE = 0o600
_ADVICE = {errno.ENOSPC: "; free some space there, or write to another disk (LIB_OUTPUT moves what is measured and built)",
           errno.EDQUOT: "; the quota there is used up: free some space, or write to another disk",
           errno.EACCES: "; it takes permission to write there", errno.EROFS: "; that disk can only be read"}
SOCKET_BYTES = 107 if sys.platform.startswith("linux") else 103  # that a socket's path may have
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"  # of a folder of the project's own, where people choose it


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of this block (full disk, no permission) into an InputError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); what was written before is kept"
                         + _ADVICE.get(error.errno, "")) from None


def until_changed(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``read``, whose first argument is a path: it is called once until that file or folder changes."""
    @cache
    def read_once(path: Path, _: int, *more: Any) -> Any:
        return read(path, *more)

    return lambda path, *more: read_once(path, path.stat().st_mtime_ns, *more)


def safe_name(text: str) -> str:
    """Return a file name for any text, different for different texts and valid on any file system.

    A plain lower-case text is its own name; any other is cut and ends in ``~`` and a hash.
    """
    if re.fullmatch(r"[a-z0-9]([a-z0-9._-]{0,78}[a-z0-9_-])?", text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^a-z0-9]+', '_', text.lower())[:60].strip('_')}~{digest}"


def folder(path: Path) -> Path:
    """Return a folder of the project's own output, made if it is not there; InputError where that is refused."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def check_new(path: Path) -> Path:
    """Return a path that a user named for a new file.

    Raises InputError where something is there already, its folder is missing, or it is no place for a file. A stream such as
    /dev/stdout or a named pipe is written to.
    """
    if is_stream(path):
        return path
    with writing(path):
        exists = path.is_symlink() or path.exists()
    if exists:
        what = "is a folder" if path.is_dir() else "exists already and is not overwritten"
        raise InputError(f"{path} {what}; name a new file")
    if not path.name or not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.absolute().parent}; make it first, or name a file elsewhere")
    return path


def is_stream(path: Path) -> bool:
    """Return whether a path is a character device or a named pipe; InputError for other things that hold no data."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise InputError(f"{path} is no regular file; name a new file")
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def create(path: Path, content: bytes, mode: int = MODE) -> Path:
    """Write a new file: afterwards it is there as a whole, or not at all. InputError where something is there already."""
    with writing(path):
        if is_stream(path):
            with open(path, "wb") as stream:
                stream.write(content)
            return path
        with _beside(path, content, mode) as temporary:
            _name_new(temporary, path)
    return path


def _name_new(source: Path | str, path: Path) -> None:
    """Give a file the name ``path`` too, or move it there; InputError where something is there already."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise InputError(f"{path} exists already and is not overwritten") from None
    except OSError:  # a file system without hard links
        check_new(path)
        os.replace(source, path)


def replace(path: Path, content: bytes) -> Path:
    """Replace a file in one step: readers see the old content or the new content, never a part of it."""
    folder(path.parent)
    with writing(path), _beside(path, content, MODE) as temporary:
        os.replace(temporary, path)
    return path


@contextlib.contextmanager
def _beside(path: Path, content: bytes, mode: int) -> Iterator[str]:
    """Write ``content`` to a temporary file in the folder of ``path``, which is gone afterwards."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def short_folder(beneath: int) -> str:
    """Return a temporary folder below which sockets can have paths of ``beneath`` bytes: the usual one, or one of the system's.

    Raises InputError, which says to set TMPDIR, where none can be written.
    """
    usual = tempfile.gettempdir()
    for parent in (usual, "/tmp", "/dev/shm", "/var/tmp"):
        if len(os.fsencode(parent)) + 1 + beneath <= SOCKET_BYTES and os.access(parent, os.W_OK | os.X_OK):
            return parent
    raise InputError(f"sockets need a temporary folder with a short path; {usual} is too long or cannot be written: set "
                     "TMPDIR")


def shorten_sockets() -> None:
    """Put the sockets of this process and its children, by which loader workers pass tensors, into a folder with a short path.

    With a long TMPDIR a loader would wait for its workers for ever. Raises the errors of ``short_folder``.
    """
    import multiprocessing
    from multiprocessing import util

    name = "pymp-abcdefgh/listener-abcdefgh"
    config, usual = multiprocessing.current_process()._config, tempfile.tempdir
    if len(os.fsencode(config.get("tempdir") or "")) + len(name) > SOCKET_BYTES:
        config["tempdir"] = None
    tempfile.tempdir = short_folder(len(name))
    try:
        util.get_temp_dir()  # from now on it is this one
    finally:
        tempfile.tempdir = usual
