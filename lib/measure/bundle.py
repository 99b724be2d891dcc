"""Bundles: what was measured on one machine, packed into one file and merged on another."""

import contextlib
import hashlib
import io
import json
import re
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from lib import files, paths, store
from lib.config.base import build, mapping
from lib.errors import InputError, beginning, choices, refused
from lib.measure import bundle_contents
from lib.measure.archive import NO_MACHINES, TRAININGS
from lib.measure.bundle_contents import FOLDERS, META, Index, Readers
from lib.tables import SCHEMA_VERSION

_FORMATS = (1, 2)  # that are read; the last one is written
_INDEX = "bundle.json"
_MOST_FILES = 20_000
_FILE_MB, _JSON_MB, _ALL_MB, _BUNDLE_MB = 200, 8, 1000, 200
_RATIO = 100  # of a file to what it takes in the bundle; measurements come to about ten
_CHUNK = 2**20
_MACHINE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
NO_READERS: Readers = MappingProxyType({})


def pack(target: Path, machine: str, folder: Path | None = None, host_name: bool = False,
         readers: Readers = NO_READERS) -> list[str]:
    """Pack what was measured in ``folder`` (default: data/) with its provenance into ``target``; return the packed names.

    What was cut short (rows of a run without its line in ``runs``, a sweep without its table) is left out, and what is no
    table and ``readers`` do not read; unless ``host_name``, so are the host's name and the folders of paths. Raises InputError
    when there is nothing to pack, a table does not fit, or ``target`` exists.
    """
    folder, digests = folder or paths.DATA, {}
    files.check_new(target)
    names = _finished(folder, readers)
    if not names:
        raise InputError(f"nothing to pack: no finished runs, sweeps or ceilings in {folder}; measure something first")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            _checked(folder, name, readers, folder)
            data = (folder / name).read_bytes() if host_name else bundle_contents.without_host(folder / name, name)
            digests[name] = hashlib.sha256(data).hexdigest()
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        index = Index(format=_FORMATS[-1], machine=machine, files=digests, schema_version=SCHEMA_VERSION)
        archive.writestr(zipfile.ZipInfo(_INDEX), json.dumps(index.model_dump(), indent=1), zipfile.ZIP_DEFLATED)
        _check_sizes(archive, str(folder))
    files.create(target, content.getvalue())
    return names


def machine_of(here: str, readers: Readers) -> str:
    """Return the machine that measured what ``pack`` would pack: ``here`` where it did, or nothing says so, else the only one.

    Raises InputError where several others did.
    """
    metas = [paths.DATA / name for name in _finished(paths.DATA, readers) if name.endswith(META)]
    machines = set().union(*(bundle_contents.machines_in(path) for path in metas))
    if here in machines or not machines:
        return here
    if len(machines) > 1:
        raise InputError(f"{paths.DATA} holds what several machines measured, and this one did not: "
                         f"{choices(sorted(machines))}; a bundle is of one machine: pack each where its own lies alone "
                         "(LIB_OUTPUT names the folder)")
    return machines.pop()


def _finished(folder: Path, readers: Readers) -> list[str]:
    """Return the names of the files to pack: those that a bundle may hold, of measurements that ended."""
    names = []
    for path in (path for name in FOLDERS for path in sorted((folder / name).glob("**/[!.]*"))):
        name = path.relative_to(folder).as_posix()
        with contextlib.suppress(InputError):  # what no bundle holds stays
            if path.is_file() and bundle_contents.is_read(name, readers):
                names.append(name)
    while (whole := [name for name in names if not bundle_contents.lacking(name, names)]) != names:
        names = whole  # what lacks something may be what another one needs
    return names


def merge(source: Path, target: Path | None = None, readers: Readers = NO_READERS) -> tuple[Path, int]:
    """Merge a bundle into ``target`` (default: data/imported), under its machine's name; return the folder and new files.

    The same files again change nothing; a sweep or matrix that went on since is gone on with, and networks and models that
    were written anew on the same machine are replaced by the later ones. Other files of the same names, and those of another
    machine that is called the same, go to ``<machine>-v2``. All files are checked before anything is written, and none is held
    but the one being read. ``readers`` read, by kind, what is no table. Raises InputError for a damaged bundle, one that holds
    anything else than tables with their provenance, one of a later schema, and one that is too large.
    """
    target, hardware = target or paths.IMPORTED, set()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        with _opened(source) as archive:
            index = _index(archive, source, scratch)
            for name, digest in index.files.items():
                if _extract(archive, name, scratch) != digest:
                    raise InputError(f"{source}: {name} is damaged (its digest does not fit)")
        for name in index.files:
            hardware |= _checked(scratch, name, readers, source)

        def collides(machine: str) -> bool:
            if target != paths.REFERENCE and (paths.REFERENCE / machine).exists():
                return True  # a name stands for one machine, and the committed one has it
            others = bundle_contents.hardware_of(target / machine)
            return bool(others and hardware and not others & hardware) or \
                "other" in _successions(target / machine, scratch, index, readers).values()

        folder = target / store.fresh_name(index.machine, collides)
        there = _successions(folder, scratch, index, readers)
        new = [name for name in bundle_contents.written_order(index.files) if there.get(name, "grown") == "grown"]
        for name in new:
            path = files.folder((folder / name).parent) / Path(name).name
            (files.replace if name in there else files.create)(path, (scratch / name).read_bytes())
    return folder, len(new)


def _checked(folder: Path, name: str, readers: Readers, where: Path) -> set[str]:
    """Return the hardware ids in a file of a bundle; InputError names ``where`` it lies, and the file that does not fit."""
    with beginning(f"{where}: {name} does not fit its table", f"{folder}/"):
        return bundle_contents.check(folder / name, name, readers)


def _successions(folder: Path, scratch: Path, index: Index, readers: Readers) -> dict[str, str]:
    return {name: bundle_contents.succession(folder, scratch, name, index.files, readers)
            for name in index.files if (folder / name).is_file()}


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile]:
    """Open a bundle whose entries are tables, plainly stored or deflated, and not too large; nothing is read of them yet."""
    if not source.is_file():
        raise InputError(f"{source} is no file" if source.exists() else f"{source} is missing")
    with refused(f"{source} is no bundle or is damaged: "):
        _check_directory(source)
        with zipfile.ZipFile(source) as archive:
            _check_entries(archive, source)
            _check_sizes(archive, str(source))
            yield archive


def _check_directory(source: Path) -> None:
    """Refuse an archive with too long a list of entries, before that list is read."""
    with open(source, "rb") as file:
        file.seek(max(0, source.stat().st_size - 42))
        locator, end = (tail := file.read().rjust(42, b"\0"))[:20], tail[20:]
    if end[:4] != b"PK\5\6" or end[20:] != b"\0\0" or locator[:4] == b"PK\6\7":
        raise InputError(f"{source} is no bundle or is damaged: it does not end as one")
    if int.from_bytes(end[10:12], "little") > _MOST_FILES or int.from_bytes(end[12:16], "little") > _MOST_FILES * 1000 \
            or source.stat().st_size > _BUNDLE_MB * 1e6:
        raise InputError(f"{source} is larger than a bundle may be ({_BUNDLE_MB} MB, {_MOST_FILES:,} files)")


def _check_entries(archive: zipfile.ZipFile, source: Path) -> None:
    (name, times), = Counter(archive.namelist()).most_common(1) or [("", 0)]
    if times > 1:
        raise InputError(f"{source} holds {name!r} twice")
    for entry in archive.infolist():
        if entry.filename != _INDEX:
            with beginning(str(source)):
                bundle_contents.table_of(entry.filename)
        if entry.flag_bits & 1:
            raise InputError(f"{source}: {entry.filename} is encrypted; a bundle is not")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{source}: {entry.filename} is compressed in a way that a bundle is not ({entry.compress_type})")
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise InputError(f"{source}: {entry.filename} is a link or no file")


def _check_sizes(archive: zipfile.ZipFile, where: str) -> None:
    """Refuse files that are too large by the list of entries; no more than listed is read later."""
    entries = archive.infolist()
    for entry in entries:
        most_mb = _JSON_MB if entry.filename.endswith(".json") else _FILE_MB
        if entry.file_size > most_mb * 1e6 or entry.file_size > _CHUNK + _RATIO * entry.compress_size:
            raise InputError(f"{where}: {entry.filename} has {entry.file_size / 1e6:,.1f} MB, packed "
                             f"{entry.compress_size / 1e6:,.2f}; it has at most {most_mb} MB, and {_RATIO} times of that")
    total = sum(entry.file_size for entry in entries)
    if total > _ALL_MB * 1e6 or len(entries) > _MOST_FILES or sum(entry.compress_size for entry in entries) > _BUNDLE_MB * 1e6:
        raise InputError(f"{where}: {len(entries):,} files of {total / 1e6:,.0f} MB are more than a bundle may hold "
                         f"({_MOST_FILES:,}, {_ALL_MB:,} MB, packed {_BUNDLE_MB})")


def _index(archive: zipfile.ZipFile, source: Path, scratch: Path) -> Index:
    """Return the index of a bundle, which names every other file in it and nothing else."""
    _extract(archive, _INDEX, scratch)
    with beginning(str(source), f"{scratch}/"):
        index = build(Index, mapping(store.read_json(scratch / _INDEX), scratch / _INDEX), _INDEX)
        if index.format not in _FORMATS:
            raise InputError(f"it has format {index.format}; this version reads {choices(_FORMATS)}")
        bundle_contents.check_schema(index.schema_version)
        for name in index.files:
            bundle_contents.table_of(name)
    if not re.fullmatch(_MACHINE, index.machine) or index.machine.lower() in (*NO_MACHINES, *TRAININGS):
        raise InputError(f"{source}: {index.machine[:60]!r} is no name of a machine")
    if not index.files:
        raise InputError(f"{source} holds no table")
    missing, others = set(index.files) - set(archive.namelist()), set(archive.namelist()) - {*index.files, _INDEX}
    if missing or others:
        raise InputError(f"{source} is damaged: it lacks [{choices(sorted(missing)[:3])}], and its index does not name "
                         f"[{choices(sorted(others)[:3])}]")
    for name in index.files:
        if why := bundle_contents.lacking(name, index.files):
            raise InputError(f"{source}: {name} {why}")
    return index


def _extract(archive: zipfile.ZipFile, name: str, scratch: Path) -> str:
    """Write one checked entry below ``scratch``, a piece at a time; return its SHA-256."""
    digest, path = hashlib.sha256(), scratch / name
    files.folder(path.parent)
    with archive.open(name) as packed, files.writing(path), open(path, "xb") as file:
        while piece := packed.read(_CHUNK):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()
