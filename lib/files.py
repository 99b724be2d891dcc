"""Writing of files: complete or not at all, with one-line errors."""

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lib.errors import InputError

MODE = 0o644
PRIVATE = 0o600
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"  # of a folder of results, where people choose it
_LONGEST_TMPDIR = 70  # characters; the path of a socket has 107 at most
_ADVICE = {errno.ENOSPC: "; free some space there, or set LIB_OUTPUT to a folder on another disk",
           errno.EDQUOT: "; the quota there is used up", errno.EROFS: "; that disk is read-only"}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of this block (full disk, no permission) into an InputError with ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); what was written "
                         f"before is kept{_ADVICE.get(error.errno, '')}") from None


def until_changed(read: Callable[..., Any]) -> Callable[..., Any]:
    """Cache ``read``, whose first argument is a path, until that file or folder changes."""
    @cache
    def read_once(path: Path, _: int, *more: Any) -> Any:
        return read(path, *more)

    return lambda path, *more: read_once(path, path.stat().st_mtime_ns, *more)


def safe_name(text: str) -> str:
    """Return a file name for any text, different for different texts.

    A plain lower-case text is returned unchanged; any other is shortened and ends in a hash.
    """
    if re.fullmatch(r"[a-z0-9]([a-z0-9._-]{0,78}[a-z0-9_-])?", text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^a-z0-9]+', '_', text.lower())[:60].strip('_')}~{digest}"


def folder(path: Path) -> Path:
    """Create a folder if it is missing and return it; InputError where that fails."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def check_new(path: Path) -> Path:
    """Return the path of a new file; InputError if it exists or its folder is missing."""
    with writing(path):
        exists = path.is_symlink() or path.exists()
    if exists:
        what = "is a folder" if path.is_dir() else "exists already and is not overwritten"
        raise InputError(f"{path} {what}; name a new file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.absolute().parent}; make it first, or "
                         "name a file elsewhere")
    return path


def create(path: Path, content: bytes, mode: int = MODE) -> Path:
    """Write a new file, complete or not at all; InputError if it exists, also since a moment ago."""
    return _written(check_new(path), content, mode, _link)


def replace(path: Path, content: bytes, mode: int = MODE) -> Path:
    """Write a file in one step: readers see the old content or the new, never a part of it."""
    return _written(path, content, mode, os.replace)


def _link(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        check_new(path)
        raise
    except OSError:  # a file system without links
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def _written(path: Path, content: bytes, mode: int, move: Callable[[str, Path], None]) -> Path:
    folder(path.parent)
    with writing(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no regular file; name another one")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with open(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, mode)
            move(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file gets its own name once the block has written all of it."""
    with writing(path), tempfile.TemporaryDirectory(dir=folder(path.absolute().parent),
                                                    prefix=".") as scratch:
        part = Path(scratch) / path.name
        yield part
        os.replace(part, path)


def shorten_sockets() -> None:
    """Let loader workers put their sockets in /tmp where TMPDIR is too long for the paths of them.

    With a long TMPDIR a loader would wait for its workers for ever.
    """
    from multiprocessing import current_process, util

    usual, config = tempfile.tempdir, current_process()._config
    if len(os.fsencode(config.get("tempdir") or tempfile.gettempdir())) > _LONGEST_TMPDIR:
        config["tempdir"], tempfile.tempdir = None, "/tmp"
        try:
            util.get_temp_dir()  # chosen now, and kept
        finally:
            tempfile.tempdir = usual
