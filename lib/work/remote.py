"""A remote folder at an fsspec address: a local folder, ``memory://``, ``s3://``, ...

Keys and end points come from fsspec's configuration (``FSSPEC_S3_KEY``, ``~/.config/fsspec``) and are never written or shown.
"""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import files
from lib.errors import InputError, choices, one_line, refused


def place(folder: str, address: str) -> str:
    """Return a folder within a remote as its parts; InputError where it could lead out of it."""
    parts = [part for part in folder.split("/") if part] if not folder.startswith("/") else [""]
    if not all(re.fullmatch(files.NAME, part) for part in parts):
        raise InputError(f"{folder!r} is no folder in {address}: plain names with / between them, such as lab/rtx-3060")
    return "/".join(parts)


@dataclass(frozen=True)
class Remote:
    """A remote that was opened; ``address`` is how it is shown, ``local`` whether it is a folder of this host."""

    address: str
    filesystem: Any
    root: str
    local: bool

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None where there is none; InputError where the remote fails."""
        with self._reached():
            try:
                return int(self.filesystem.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, sorted; none where it is missing; InputError where the remote fails."""
        with self._reached():
            self.filesystem.invalidate_cache()
            try:
                return sorted(path.rstrip("/").rpartition("/")[2]
                              for path in self.filesystem.ls(self._path(folder), detail=False))
            except FileNotFoundError:
                return []

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return a file's content, None where there is none; InputError beyond ``most_bytes``, or where the remote fails."""
        size = self.size(name)
        if size is None or size > most_bytes:
            if size is None:
                return None
            raise InputError(f"{self.address}: {name} has {size:,} bytes, {most_bytes:,} are right; it is damaged")
        with self._reached():
            return self.filesystem.cat_file(self._path(name), start=0, end=size) if size else b""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in one step where the remote can, over one that is there; InputError where the remote fails."""
        with self._reached():
            if self.local:
                files.replace(Path(self._path(name)), content)
            else:
                self._make_folder(name)
                self.filesystem.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a new file; return False where another one is there already. InputError where the remote fails."""
        try:
            with self._reached():
                if self.local:
                    files.create(files.folder(Path(self._path(name)).parent) / Path(name).name, content)
                else:
                    self._make_folder(name)
                    self.filesystem.pipe_file(self._path(name), content, mode="create")
        except InputError:  # what lies there now decides, also where the answer alone was lost
            size = self.size(name)
            there = self.read(name, size) if size is not None and size <= len(content) else b""
            if size is None or (there != content and content.startswith(there) and size < len(content)):
                raise
            return there == content
        return True

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _make_folder(self, name: str) -> None:
        self.filesystem.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _reached(self) -> AbstractContextManager[None]:
        """Turn whatever a remote raises (there are as many classes as stores) into an InputError that names it."""
        return refused(f"{self.address} failed: ", "; what is there is kept, and the same again goes on")


def open_remote(address: str, folder: str = "") -> Remote:
    """Open a remote and a folder in it.

    Raises InputError for an address that fsspec does not know, a package that it needs, and a local folder that is missing.
    """
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    shown = re.sub(r"//[^/@]*@", "//***@", address)
    within = place(folder, shown)
    try:
        filesystem, root = fsspec.url_to_fs(address)
        local = isinstance(filesystem, LocalFileSystem)
        missing = local and not Path(root).is_dir()
    except ImportError as error:
        raise InputError(f"{shown}: a package is missing: {error}") from None
    except Exception as error:
        raise InputError(f"{shown} is no address of a remote ({one_line(error)}); a folder, or one that fsspec knows, such as "
                         f"{choices(('s3://bucket/folder', 'sftp://host/folder'))}") from None
    if missing:
        raise InputError(f"{shown}: there is no such folder; make it first, or name the address of a store (s3://bucket)")
    named = str(Path(root).resolve()) if local else shown.rstrip("/")  # one folder has one name, wherever it is named from
    return Remote("/".join(part for part in (named, within) if part), filesystem,
                  f"{root.rstrip('/')}/{within}".rstrip("/"), local)
