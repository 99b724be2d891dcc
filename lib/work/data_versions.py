"""Versions of a folder of data in a remote: pushed and pulled whole, never half, and nobody's work overwritten.

A remote holds the files as ``objects/<sha256>``, and one manifest per version as ``branches/<branch>/<number>.json``. A push
writes the objects first and the manifest last, under the next number: it never touches an earlier version, and of two pushes at
once one is refused. A manifest torn by a death is ignored. The folder records in ``.version.json`` the version that it was
pulled from or pushed as. A push is refused unless that is the branch's last version (pull first). A pull changes and removes
only files that are still as in that version, so a file that was removed from a branch does not return from another folder.
Hidden files are neither pushed nor pulled.
"""

import contextlib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from lib import files, locks, store
from lib.config.base import Strict, load
from lib.errors import InputError, choices
from lib.progress import track
from lib.work import manifests
from lib.work.manifests import FILE_MB, MOST_FILES, Entry, Manifest
from lib.work.remote import Remote, open_remote

DEFAULT_BRANCH = "main"
RECORD, SCRATCH = ".version.json", ".pull"
_SHOWN = 5


class Record(Strict):
    """Which version a folder was pulled from, or pushed as."""

    remote: str
    manifest: Manifest


@dataclass(frozen=True)
class Transfer:
    """What a push or pull did: the version, the names of files that were carried, and notes."""

    manifest: Manifest
    carried: tuple[str, ...]
    notes: tuple[str, ...] = ()


def split(text: str) -> tuple[str, str]:
    """Return address and branch of ``REMOTE[@branch]``; InputError where it is neither.

    An ``@`` before the last slash, or among user and host, is a part of the address: ``s3://bucket/@branch``.
    """
    address, at, branch = text.rpartition("@")
    if not at or "/" in branch or re.fullmatch(r"[^/]*://[^/]*", address):
        address, branch = text, DEFAULT_BRANCH
    if not address or not re.fullmatch(files.NAME, branch):
        raise InputError(f"{text!r} is no REMOTE[@branch]: a folder or an address, and a branch of letters, digits, dots, "
                         "dashes and underscores")
    return address, branch


def check(target: str) -> None:
    """Raise InputError for what is no ``REMOTE[@branch]`` that answers: before long work that ends in a push."""
    open_remote(split(target)[0]).names("branches")


# ------------------------------------------------------------------------------------------------ push

def push(folder: Path, target: str, remote_dir: str = "", source: str = "") -> Transfer:
    """Push a folder as the next version of ``REMOTE[@branch]``; the same files again are no new version.

    Raises InputError where the branch has a version that the folder does not come from, the remote fails (nothing of the branch
    changes), or a file cannot be part of a version.
    """
    address, branch = split(target)
    remote = open_remote(address, remote_dir)
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    if remote.local and Path(remote.root).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{remote.address} lies within {folder}, which would be pushed into itself; name a folder elsewhere")
    with locks.writer(folder):
        numbers, path = manifests.numbers(remote, branch), folder / RECORD
        record = load(Record, path) if path.is_file() else None
        last, notes = manifests.last(remote, branch, numbers)
        entries = _entries(folder)
        if last and last.files == entries:
            return Transfer(_write_record(path, remote, last), (), notes)
        if last and (record is None or (record.remote, record.manifest) != (remote.address, last)):
            raise _moved_on(remote, branch, folder)
        manifest = Manifest(branch=branch, number=max(numbers, default=0) + 1, written_utc=store.utc_now(), files=entries,
                            source=source or "not stated")
        carried = [entry.name for entry in track(entries, "push") if _upload(remote, folder, entry)]
        if not remote.create(manifests.path_of(branch, manifest.number), manifest.encoded()):
            raise _moved_on(remote, branch, folder)
        return Transfer(_write_record(path, remote, manifest), tuple(carried), notes)


def _moved_on(remote: Remote, branch: str, folder: Path) -> InputError:
    return InputError(f"{remote.address}: branch {branch} has a version that {folder} does not come from (somebody else pushed "
                      "it); pull it first, here or where files differ into another folder, then push again")


def _entries(folder: Path) -> tuple[Entry, ...]:
    """Return what a version of a folder holds, hidden files left out; InputError for what cannot be part of one."""
    listed = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*folders, *sorted(name for name in names if not name.startswith("."))]:
            path = Path(place, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise InputError(f"{path} is a link or no file; a version holds files")
            if not re.fullmatch(files.NAME, name):
                raise InputError(f"{path}: {name!r} cannot be part of a version; a name has letters, digits, dots, dashes and "
                                 "underscores, a letter or digit first")
            listed += [path] if path.is_file() else []
    if not listed or len(listed) > MOST_FILES:
        raise InputError(f"{folder} holds {len(listed):,} files; a version has 1 to {MOST_FILES:,}")
    entries = []
    for path in track(listed, "read"):
        size = path.stat().st_size
        if size > FILE_MB * 1e6:
            raise InputError(f"{path} has {size / 1e6:,.0f} MB; a file of a version has at most {FILE_MB:,}")
        entries.append(Entry(name=path.relative_to(folder).as_posix(), sha256=_digest(path), bytes=size,
                             rows=store.count_rows(path)))
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})")


def _upload(remote: Remote, folder: Path, entry: Entry) -> bool:
    """Write a file's object where the remote lacks it; return whether it did. One of another size is what a death left."""
    name = f"objects/{entry.sha256}"
    if remote.size(name) == entry.bytes:
        return False
    content = (folder / entry.name).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise InputError(f"{folder / entry.name} changed while it was pushed; nothing of the branch changed; push again")
    remote.write(name, content)
    return True


# ------------------------------------------------------------------------------------------------ pull

def pull(folder: Path, target: str, remote_dir: str = "", version: int | None = None) -> Transfer:
    """Bring a version of ``REMOTE[@branch]`` (default: the last) into a folder; a pull that was cut short goes on.

    Each file is checked before any is put in place; files that an earlier version left here unchanged and this one lacks are
    removed. Raises InputError for files here that differ, naming them (nothing is changed then), an unknown branch or version,
    a damaged remote, and where it fails.
    """
    address, branch = split(target)
    remote = open_remote(address, remote_dir)
    manifest, notes = manifests.wanted(remote, branch, version)
    with locks.writer(files.folder(folder)):
        placed = _placed(folder)
        states = {entry.name: _state(folder, entry.name, entry.sha256, placed) for entry in manifest.files}
        absent = {name: _state(folder, name, "", placed) for name in sorted(placed.keys() - states.keys())
                  if not (folder / name).is_dir()}
        differing = [name for name, state in (states | absent).items() if state == "differs"]
        if differing:
            raise InputError(f"{folder}: {len(differing)} files differ from version {manifest.number} of {branch} and are not "
                             f"overwritten: {choices(differing[:_SHOWN])}{', ...' if len(differing) > _SHOWN else ''}; move "
                             "them away, or pull into another folder (--local)")
        wanted = [entry for entry in manifest.files if states[entry.name] != "same"]
        for entry in track(wanted, "pull"):
            _fetch(remote, entry, folder / SCRATCH / entry.name)
        _write_record(folder / SCRATCH / f".{branch}-{manifest.number}.json", remote, manifest)
        removed = [name for name, state in absent.items() if state == "older"]
        for name in removed:
            _remove(folder, name, placed)
        for entry in wanted:
            _put(folder, entry, placed)
        _write_record(folder / RECORD, remote, manifest)
        with files.writing(folder):
            shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        lost = [f"removed, as version {manifest.number} of {branch} lacks them: {choices(removed)}"] if removed else []
        return Transfer(manifest, tuple(entry.name for entry in wanted), (*notes, *lost))


def _placed(folder: Path) -> dict[str, set[str]]:
    """Return the digests of each file that a pull or push left here: the last one, and pulls after it that were cut short."""
    placed = {}
    for path in (folder / RECORD, *sorted((folder / SCRATCH).glob(".*.json"))):
        for entry in load(Record, path).manifest.files if path.is_file() else ():
            placed.setdefault(entry.name, set()).add(entry.sha256)
    return placed


def _state(folder: Path, name: str, sha256: str, placed: dict[str, set[str]]) -> str:
    """Return whether a file here is ``same`` as in a version, ``missing``, ``older`` (as placed here), or ``differs``."""
    path = folder / name
    steps = [folder / parent for parent in Path(name).parents if parent != Path()]
    if path.is_symlink() or any(step.is_symlink() or (step.exists() and not step.is_dir()) for step in steps):
        return "differs"
    if not path.exists():
        return "missing"
    here = _digest(path) if path.is_file() else ""
    return "same" if here and here == sha256 else "older" if here in placed.get(name, ()) else "differs"


def _fetch(remote: Remote, entry: Entry, path: Path) -> None:
    """Bring a file into the scratch folder, unless an earlier pull did; InputError for one that is not what it should be."""
    if path.is_file() and _digest(path) == entry.sha256:
        return
    content = remote.read(f"objects/{entry.sha256}", entry.bytes)
    if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise InputError(f"{remote.address}: {entry.name} is {'missing' if content is None else 'damaged'} (objects/"
                         f"{entry.sha256}); nothing here was changed; remove it there, and push again from a whole folder")
    files.replace(path, content)


def _put(folder: Path, entry: Entry, placed: dict[str, set[str]]) -> None:
    """Move a fetched file to its place, if what is there is still what it was."""
    path, state = folder / entry.name, _state(folder, entry.name, entry.sha256, placed)
    if state not in ("missing", "older"):
        raise _changed(path)
    files.move(folder / SCRATCH / entry.name, path, over=state == "older")


def _remove(folder: Path, name: str, placed: dict[str, set[str]]) -> None:
    """Remove a file, if it is still what was placed here, and the folders that it leaves empty."""
    path = folder / name
    if _state(folder, name, "", placed) != "older":
        raise _changed(path)
    with files.writing(path):
        path.unlink()
    for parent in [folder / parent for parent in Path(name).parents if parent != Path()]:
        with contextlib.suppress(OSError):  # it holds more
            parent.rmdir()


def _changed(path: Path) -> InputError:
    return InputError(f"{path} changed meanwhile and is not overwritten; move it away, and pull again")


def _write_record(path: Path, remote: Remote, manifest: Manifest) -> Manifest:
    store.write_json(Record(remote=remote.address, manifest=manifest).model_dump(mode="json", by_alias=True), path)
    return manifest


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
