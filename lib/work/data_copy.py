"""Copy a folder to and from an fsspec URL (a folder, ``s3://bucket/lab``), checked by SHA-256.

``checksums.sha256``, as ``sha256sum`` writes it, lies beside the files. It is written last: files
without it are an interrupted copy and are not pulled. Hidden files and links are not copied.
"""

import hashlib
import os
import re
from pathlib import Path

from lib import files
from lib.errors import InputError, refused
from lib.progress import track

LISTING = "checksums.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00-\x1f\x7f-\x9f\ud800-\udfff]+)")  # SHA-256 and name
_HIDDEN = re.compile(r"(^|/)\.")


def push(folder: Path, url: str) -> dict[str, str]:
    """Copy a folder's files to a URL, over an earlier copy; return the SHA-256 of each by name."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_copied = path.is_file() and not path.is_symlink() and name != LISTING
        if is_copied and not _HIDDEN.search(name):
            digests[name] = _digest(path)
            if not _LINE.fullmatch(f"{digests[name]}  {name}"):
                raise InputError(f"{folder} holds {name!r}, whose name has control characters or "
                                 "is no UTF-8; rename it")
    if not digests:
        raise InputError(f"{folder} holds no files")
    listing = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    remote, shown = _opened(url)
    with refused(f"{shown} failed: ", "; no complete copy is there: push again"):
        if remote.exists(LISTING):
            remote.rm_file(LISTING)
        for name in track(list(digests), "push"):
            remote.makedirs(str(Path(name).parent), exist_ok=True)
            remote.put_file(str(folder / name), name)
        remote.pipe_file(LISTING, listing.encode())
    files.replace(folder / LISTING, listing.encode())
    return digests


def pull(url: str, folder: Path) -> dict[str, str]:
    """Copy what was pushed to a URL into a folder; return the SHA-256 of each file by name.

    Raises InputError for a listing that is none, for names that are hidden or leave the folder, and
    for files here that differ from the copy and from the last one; they stay.
    """
    remote, shown = _opened(url)
    with refused(f"{shown} holds no complete copy of a folder: "):
        listing = remote.cat_file(LISTING)
        digests, missing = _parsed(listing), []
    own = folder / LISTING
    with refused(f"{own} is damaged: ", "; remove it"):
        before = _parsed(own.read_bytes()) if own.is_file() else {}
    for name, digest in digests.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{shown}: {name!r} leads out of the folder")
        if _HIDDEN.search(name):
            raise InputError(f"{shown}: {name!r} is hidden, and hidden files are not copied")
        here = _digest(path) if path.is_file() else None
        if here not in (None, digest, before.get(name)):
            raise InputError(f"{path} differs from the copy and is not overwritten; move it away, "
                             "or pull into another folder")
        if here != digest:
            missing.append(name)
    for name in track(missing, "pull"):
        part = files.folder((folder / name).parent) / f".{Path(name).name}.part"
        with refused(f"{shown}: {name} cannot be copied: ", "; pull again"):
            remote.get_file(name, str(part))
            if _digest(part) != digests[name]:
                raise InputError(f"{shown}: {name} is damaged there; push it again")
            os.replace(part, folder / name)
    files.replace(own, listing)
    return digests


def _opened(url: str):
    """Return the filesystem of the folder at a URL, and the URL without user and password."""
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    shown = re.sub(r"//[^/@]*@", "//***@", url)
    with refused(f"{shown} cannot be opened: "):
        filesystem, path = fsspec.url_to_fs(url)
    return DirFileSystem(path, filesystem), shown


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parsed(listing: bytes) -> dict[str, str]:
    """Return the SHA-256 of each file by name; ValueError for a listing that is none."""
    digests = {}
    for line in listing.decode().removesuffix("\n").split("\n"):
        if not (match := _LINE.fullmatch(line)):
            raise ValueError(f"{LISTING} has a line {line[:60]!r}, which is no SHA-256 and name")
        digests[match[2]] = match[1]
    return digests
