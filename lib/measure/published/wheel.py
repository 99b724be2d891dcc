"""Where the data of aiconfigurator lie: an installed package, a folder, or a wheel that is read without being installed."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from lib.csv_files import LARGEST_MB
from lib.errors import InputError, choices, one_line
from lib.measure.importers import AICONFIGURATOR

_DATA = PurePosixPath("aiconfigurator_core/systems/data")
_KINDS = ("gemm", "attention")
_SUFFIX, _CHUNK = ".whl", 1 << 20


@contextmanager
def data_folder(path: Path | None) -> Iterator[Path | None]:
    """Give the data folder of aiconfigurator: None stays None, a wheel's GEMM and attention tables are unpacked meanwhile.

    Raises InputError for a file that is no such wheel, or one whose tables are too large.
    """
    if path is None or not path.is_file():
        inside = path / _DATA if path else None
        yield inside if inside and inside.is_dir() else path
        return
    if path.suffix != _SUFFIX:
        raise InputError(f"{path} is neither a folder nor a wheel (aiconfigurator_core-<version>{_SUFFIX})")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / path.name
        try:
            with zipfile.ZipFile(path) as archive:
                _unpack(archive, folder, path)
        except InputError:
            raise
        except Exception as error:  # a damaged file fails in many ways
            raise InputError(f"{path} is no wheel or is damaged: {one_line(error)}") from None
        yield folder


def _unpack(archive: zipfile.ZipFile, folder: Path, path: Path) -> None:
    """Write the tables of known devices under ``folder``; nothing else of the archive is read, and no more than it says."""
    tables = [entry for entry in archive.infolist() if _is_table(entry.filename)]
    if not tables:
        raise InputError(f"{path} holds no {_DATA}/<gpu>/<{'|'.join(_KINDS)}>/<framework>/<version>/<table>_perf.parquet of "
                         f"{choices(AICONFIGURATOR)}")
    megabytes = sum(entry.file_size for entry in tables) / 1e6
    if megabytes > LARGEST_MB:
        raise InputError(f"{path} holds tables of {megabytes:,.0f} MB; it has at most {LARGEST_MB:,.0f} MB")
    for entry in tables:
        target = folder / PurePosixPath(entry.filename).relative_to(_DATA)
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)


def _is_table(name: str) -> bool:
    """Return whether an entry is a table of a known device: nothing that a name could lead elsewhere is."""
    parts, root = name.split("/"), list(_DATA.parts)
    rest = parts[len(root):]
    return parts[:len(root)] == root and len(rest) == 5 and rest[0] in AICONFIGURATOR and rest[1] in _KINDS \
        and rest[4].endswith("_perf.parquet") and not any("\\" in part or part in ("", ".", "..") for part in rest)
