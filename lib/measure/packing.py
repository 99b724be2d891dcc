"""A machine's results as one zip: packed there, unpacked here to data/imported/<machine>."""

import os
import re
import stat
import tempfile
import zipfile
from pathlib import Path

from lib import files, paths
from lib.errors import InputError, choices, refused
from lib.measure import archive, machine

FOLDERS = ("profiles", "runs", "ceilings", "points", "sweeps", "networks", "models", "matrix",
           "schedule", "training")
_FILE = rf"(?:{'|'.join(FOLDERS)})/(?:{files.NAME}/)*{files.NAME}\.(?:csv|parquet|json|json\.gz)"
_MACHINE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_ENTRY = re.compile(rf"({_MACHINE})/{_FILE}")
_MOST_MB = 2000  # of all files together


def measured_files(folder: Path) -> list[str]:
    """Return the names of the tables, models and records below FOLDERS of a data folder."""
    found = [path.relative_to(folder).as_posix() for name in FOLDERS
             for path in sorted((folder / name).rglob("*")) if path.is_file()]
    return [name for name in found if re.fullmatch(_FILE, name)]


def measured_by(names: list[str]) -> str:
    """Return the machine that measured these files of data/, by their provenance.

    Raises InputError where several did, and this machine is none of them.
    """
    facts = [entry for name in names if name.endswith(".meta.json")
             for entry in archive.identities(paths.DATA / name)]
    machines = sorted({entry["machine"] for entry in facts if entry.get("machine")})
    if not machines or machine.name() in machines:
        return machine.name()
    if len(machines) > 1:
        raise InputError(f"{paths.DATA} holds results of several machines, and not of this one: "
                         f"{choices(machines)}; pack each from a folder of its own (LIB_OUTPUT)")
    return machines[0]


def pack(target: Path | None = None) -> tuple[Path, int]:
    """Pack what was measured in data/ into a new zip; return it and the number of files.

    Its default name is <machine>.zip. Raises InputError where nothing was measured, or more than
    ``unpack`` takes, and where the zip exists.
    """
    names = measured_files(paths.DATA)
    if not names:
        raise InputError(f"nothing to pack: no results in {paths.DATA}; measure something first")
    name = measured_by(names)
    target = files.check_new(target or Path(f"{name}.zip"))
    total_mb = sum((paths.DATA / file).stat().st_size for file in names) / 1e6
    if total_mb > _MOST_MB:
        raise InputError(f"{paths.DATA} holds {total_mb:,.0f} MB of results; {_MOST_MB:,} MB are "
                         "packed, as no more are unpacked: move some of them away")
    with files.whole(target) as part, zipfile.ZipFile(
            part, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in names:
            packed.write(paths.DATA / file, f"{name}/{file}")
    return target, len(names)


def unpack(source: Path, name: str | None = None) -> Path:
    """Unpack a zip of ``pack`` to data/imported/<machine>; return that folder.

    Args:
        source: the zip; nothing of it is written unless all of its entries are files of ``pack``
        name: the name of the machine here (default: its name in the zip)

    Raises InputError for any other entry, and where the name is taken.
    """
    if not source.is_file():
        raise InputError(f"{source} is missing" if not source.exists() else f"{source} is no file")
    with refused(f"{source} is no readable zip: "), zipfile.ZipFile(source) as packed:
        machine_name = _checked(packed, source)
        target = paths.IMPORTED / (name or machine_name)
        taken = [*archive.machines(imported=True), *archive.NO_MACHINES, *archive.TRAININGS]
        if target.name in taken or target.exists():
            raise InputError(f"the name {target.name} is taken; remove {target} if it is there, "
                             "or give another --name")
        with files.writing(target), tempfile.TemporaryDirectory(
                dir=files.folder(paths.IMPORTED), prefix=".") as scratch:
            packed.extractall(scratch)
            os.replace(Path(scratch) / machine_name, target)
    return target


def _checked(packed: zipfile.ZipFile, source: Path) -> str:
    """Return the machine whose files a zip holds; InputError names the first entry that is none."""
    machines = set()
    for entry in packed.infolist():
        match = _ENTRY.fullmatch(entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if not match or kind not in (0, stat.S_IFREG):
            raise InputError(f"{source}: {entry.filename!r} is no file that data pack writes: "
                             f"<machine>/<folder>/<name>, a table or model of {choices(FOLDERS)}")
        machines.add(match[1])
    if len(machines) != 1:
        raise InputError(f"{source} holds the results of {len(machines)} machines instead of one")
    total_mb = sum(entry.file_size for entry in packed.infolist()) / 1e6
    if total_mb > _MOST_MB:
        raise InputError(f"{source} unpacks to {total_mb:,.0f} MB; {_MOST_MB:,} MB are read")
    return machines.pop()
