"""Copy a folder to and from an fsspec URL (a folder, ``s3://bucket/lab``), checked by SHA-256.

``checksums.sha256``, as ``sha256sum`` writes it, lies beside the files. It is written last: files
without it are an interrupted copy and are not pulled. Hidden files are not copied.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path

from lib import csv_files, files
from lib.errors import InputError, choices, refused
from lib.progress import track

LISTING = "checksums.sha256"
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({files.NAME}(?:/{files.NAME})*)")


def push(folder: Path, url: str) -> dict[str, str]:
    """Copy a folder's files to a URL, over an earlier copy; return the SHA-256 of each by name."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    names = [name for name in names if not re.search(r"(^|/)\.", name) and name != LISTING]
    if not names or any((folder / name).is_symlink() for name in names):
        what = "links" if names else "no files"
        raise InputError(f"{folder} holds {what}; only files are copied")
    digests = {name: _digest((folder / name).open("rb")) for name in names}
    listing = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    _parsed(listing, str(folder))
    remote, shown = _opened(url)
    with refused(f"{shown} failed: ", "; no complete copy is there: push again"):
        with contextlib.suppress(FileNotFoundError):
            remote.rm_file(LISTING)
        for name in track(names, "push"):
            remote.makedirs(str(Path(name).parent), exist_ok=True)
            remote.put_file(str(folder / name), name)
            if _digest(remote.open(name, "rb")) != digests[name]:
                raise InputError(f"{shown}: the copy of {name} is damaged; push again")
        remote.pipe_file(LISTING, listing.encode())
    files.replace(folder / LISTING, listing.encode())
    return digests


def pull(url: str, folder: Path) -> dict[str, str]:
    """Copy what was pushed to a URL into a folder; return the SHA-256 of each file by name.

    Raises InputError for files here that differ from it and from the last copy, and keeps them.
    """
    remote, shown = _opened(url)
    with refused(f"{shown} holds no complete copy of a folder: "):
        listing = remote.cat_file(LISTING).decode()
    digests, own = _parsed(listing, shown), folder / LISTING
    before = _parsed(csv_files.text(own), str(own)) if own.is_file() else {}
    here = {}
    for name in digests:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{folder / name} leads out of the folder through a link")
        if (folder / name).is_file():
            here[name] = _digest((folder / name).open("rb"))
    if differing := [name for name in here if here[name] not in (digests[name], before.get(name))]:
        raise InputError(f"{folder}: {len(differing)} files differ and are not overwritten: "
                         f"{choices(differing[:5])}; move them away, or pull into another folder")
    for name in track([name for name in digests if here.get(name) != digests[name]], "pull"):
        part = files.folder((folder / name).parent) / f".{Path(name).name}.part"
        with refused(f"{shown}: {name} cannot be copied: ", "; pull again"):
            remote.get_file(name, str(part))
            if _digest(part.open("rb")) != digests[name]:
                raise InputError(f"{shown}: {name} is damaged there; push it again")
            os.replace(part, folder / name)
    files.replace(own, listing.encode())
    return digests


def _opened(url: str):
    """Return the filesystem of the folder at a URL, and the URL without user and password."""
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    shown = re.sub(r"//[^/@]*@", "//***@", url)
    with refused(f"{shown} cannot be opened: "):
        filesystem, path = fsspec.url_to_fs(url)
    return DirFileSystem(path, filesystem), shown


def _digest(file) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parsed(listing: str, where: str) -> dict[str, str]:
    """Return name and SHA-256 of each line; InputError for a name that could leave the folder."""
    lines = listing.splitlines()
    if wrong := [line for line in lines if not _LINE.fullmatch(line)]:
        raise InputError(f"{where}: {wrong[0][66:166]!r} is no name of a file: letters, digits, "
                         "dots, dashes and underscores, with / between folders")
    return {line[66:]: line[:64] for line in lines}
