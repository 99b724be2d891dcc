"""Bundles: what was measured on one machine, packed into one file and merged on another."""

import hashlib
import json
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from lib import paths, store
from lib.errors import InputError, choices

FOLDERS = {"profiles": "profile", "runs": "runs", "ceilings": "ceilings", "points": "points"}
_FORMAT = 1


def _table_of(name: str) -> str:
    """Return the table that a file in a bundle holds, by its folder and name."""
    path = PurePosixPath(name)
    return "overheads" if path.name.startswith("overheads") else FOLDERS[path.parts[0]]


def pack(target: Path, machine: str, folder: Path | None = None) -> list[str]:
    """Pack the finished tables of ``folder`` (default: data/) with their provenance into ``target``; return the packed names.

    A run that was cut short (rows, but no line in ``runs``) is left out. Raises InputError when there is nothing to
    pack or ``target`` exists.
    """
    folder = folder or paths.DATA
    finished = {path.stem for path in (folder / "runs").glob("*.csv")}
    files = [path for name in FOLDERS for path in sorted((folder / name).glob("*"))
             if name != "profiles" or path.name.partition(".")[0].rpartition("_")[0] in finished]
    names = [path.relative_to(folder).as_posix() for path in files]
    if not names:
        raise InputError(f"nothing to pack: no finished runs or ceilings in {folder}; measure something first")
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in zip(names, files, strict=True)}
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bundle.json", json.dumps({"format": _FORMAT, "machine": machine, "files": digests}, indent=1))
            for name, path in zip(names, files, strict=True):
                archive.write(path, name)
    except FileExistsError:
        raise InputError(f"{target} exists already and is not overwritten") from None
    return names


def _opened(source: Path) -> tuple[dict, dict[str, bytes]]:
    """Return a bundle's index and files, each checked against its digest, its place and its table."""
    try:
        with zipfile.ZipFile(source) as archive:
            index = json.loads(archive.read("bundle.json"))
            files = {name: archive.read(name) for name in index["files"]}
    except FileNotFoundError:
        raise InputError(f"{source} is missing") from None
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise InputError(f"{source} is no bundle or is damaged: {error}") from None
    if index.get("format") != _FORMAT:
        raise InputError(f"{source} has format {index.get('format')}; this version reads {_FORMAT}")
    machine = str(index.get("machine", ""))
    if PurePosixPath(machine).name != machine or machine in ("", ".", ".."):
        raise InputError(f"{source}: {machine!r} is no name of a machine")
    for name, content in files.items():
        parts = PurePosixPath(name).parts
        if len(parts) != 2 or parts[0] not in FOLDERS or ".." in parts:
            raise InputError(f"{source}: {name!r} lies outside of {choices(FOLDERS)}")
        if hashlib.sha256(content).hexdigest() != index["files"][name]:
            raise InputError(f"{source}: {name} is damaged (its digest does not fit)")
    return index, files


def _checked(path: Path, name: str, source: Path) -> None:
    try:
        store.read(path, _table_of(name))
    except InputError as error:
        raise InputError(f"{source}: {name} does not fit its table: {error}") from None


def merge(source: Path, target: Path | None = None) -> tuple[Path, int]:
    """Merge a bundle into ``target`` (default: data/imported), under its machine's name; return the folder and new files.

    The same files again change nothing; other files of the same names go to ``<machine>-v2``. All tables are checked
    before anything is written. Raises InputError for a damaged bundle or a table that does not fit.
    """
    target = target or paths.IMPORTED
    index, files = _opened(source)
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in files.items():
            path = Path(scratch) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            if path.suffix == ".csv":
                _checked(path, name, source)

        def collides(machine: str) -> bool:
            there = {name: target / machine / name for name in files}
            return any(path.is_file() and path.read_bytes() != files[name] for name, path in there.items())

        folder = target / store.fresh_name(index["machine"], collides)
        new = [name for name in files if not (folder / name).is_file()]
        for name in new:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(scratch) / name, folder / name)
    return folder, len(new)
