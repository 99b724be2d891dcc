"""The door of bundles from elsewhere (``lib.measure.bundle.merge``): archives whose index, names or content are changed."""

import hashlib
import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from lib import columns, paths, store, tables
from lib.measure import bundle
from lib.tables import SCHEMA_VERSION
from tests.doors import ANY, SAME, WRONG, Door, pass_through
from tests.doors.definitions import VALUES

NAMES = [
    "../x.csv",
    "/etc/x.csv",
    "runs/../../x.csv",
    "runs/x.pkl",
    "runs/x.py",
    "runs/x.csv.exe",
    "x.csv",
    "runs/a/b.csv",
    "runs\\x.csv",
    "C:\\x.csv",
    "runs/.x.csv",
    "models/x.json.gz",
    "runs/",
    "runs/\n.csv",
    "runs/<img src=x onerror=alert(1)>.csv",
    " ",
    "bundle.json",
]
MACHINES = ["", ".", "..", "../x", "a/b", "/abs", "\0", "x" * 300, "<img src=x onerror=alert(1)>", 7, None, ["box"]]


@cache
def _original() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the index and files of a bundle made of a reference machine's overheads and one run."""
    folder = next(path for path in sorted(paths.REFERENCE.glob("*")) if (path / "runs").is_dir())
    run = sorted((folder / "runs").glob("*.csv"))[0]
    files = [
        path for name in ("runs", "profiles") for path in sorted((folder / name).glob("*")) if path.name.startswith(run.stem)
    ]
    files += sorted((folder / "ceilings").glob("*"))
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {"format": bundle._FORMATS[-1], "machine": "box", "files": _digests(contents),
            "schema_version": SCHEMA_VERSION}, contents


def _digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _archive(index: Any, files: dict[str, bytes], **how: Any) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", **{"compression": zipfile.ZIP_DEFLATED, **how}) as archive:
        archive.writestr("bundle.json", json.dumps(index))
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def _name(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    old, new = data.draw(st.sampled_from(sorted(files)), label="file"), data.draw(st.sampled_from(NAMES), label="name")
    files[new] = files.pop(old)
    return WRONG, _archive({**index, "files": _digests(files)}, files)


def _machine(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    return WRONG, _archive({**index, "machine": data.draw(st.sampled_from(MACHINES), label="machine")}, files)


def _content(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    """Put content that fits no table into a file, with a digest that fits."""
    name = data.draw(st.sampled_from(sorted(files)), label="file")
    files[name] = data.draw(
        st.sampled_from([b"", b"x", b"\x80\x04\x95", b"PAR1", b"<script>", b"[1", b"1", b"[]", b"\0" * 100]), label="content"
    )
    return WRONG, _archive({**index, "files": _digests(files)}, files)


def _digest(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    name = data.draw(st.sampled_from(sorted(files)), label="file")
    files[name] += data.draw(st.sampled_from([b"\n", b"x", b" "]))
    return WRONG, _archive(index, files)


def _index(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    wrong = data.draw(
        st.sampled_from(
            [
                None,
                [],
                "text",
                1,
                {},
                {"format": 1},
                {**index, "files": []},
                {**index, "files": None},
                {**index, "format": "1"},
                {**index, "format": 99},
                {**index, "more": 1},
                {**index, "files": dict.fromkeys(files, 1)},
                {**index, "files": {}},
            ]
        ),
        label="index",
    )
    return WRONG, _archive(wrong, files)


def _absent(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    del files[data.draw(st.sampled_from(sorted(files)), label="file")]
    return WRONG, _archive(index, files)


def _unnamed(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    return WRONG, _archive(index, {**files, data.draw(st.sampled_from(NAMES[:-2]), label="name"): b"x"})


def _value(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    key = data.draw(st.sampled_from(sorted(index)), label="key")
    return ANY, _archive({**index, key: data.draw(st.sampled_from(VALUES), label="value")}, files)


def _bytes(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    content = bytearray(_archive(index, files))
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4), label="at"):
        content[at] = data.draw(st.integers(0, 255))
    return ANY, bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2, 30, 0]))])


def _same(index: dict, files: dict[str, bytes], data: st.DataObject) -> tuple[str, bytes]:
    return SAME, _archive(index, files, compression=data.draw(st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])))


CHANGES = [_name, _machine, _content, _digest, _index, _absent, _unnamed, _value, _bytes, _same]


def _merged(path: Path, target: Path) -> dict[str, bytes]:
    """Merge, and return what lies in the target; all of it must be readable tables within one machine's folder."""
    folder, _ = bundle.merge(path, target)
    assert folder.parent == target, f"merged into {folder}"
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for name in files:
        assert name.endswith((".csv", ".parquet", ".meta.json")), f"{name} was merged"
        if name.endswith(".csv"):
            store.read(folder / name, next(table for table in tables.TABLES if _fits(folder / name, table)))
    return files


def _fits(path: Path, table: str) -> bool:
    header = tuple(path.read_text().splitlines()[0].split(","))
    return header in (tuple(tables.columns(table)), *columns.older_versions(tables.TABLES[table]))


def _attempt(data: st.DataObject, folder: Path) -> str:
    index, files = _original()
    change = data.draw(st.sampled_from(CHANGES), label="change")
    kind, content = change(dict(index), dict(files), data)
    path, target = folder / "inner" / "b.zip", folder / "inner" / "target"
    path.parent.mkdir()
    path.write_bytes(content)
    outcome = pass_through(lambda: _merged(path, target), kind, f"a bundle, {change.__name__.strip('_')} changed", files)
    if outcome == "refused":
        assert not target.exists() or not any(target.rglob("*")), "a bundle that is refused leaves nothing"
    assert sorted(one.name for one in folder.iterdir()) == ["inner"], "something was written outside"
    assert {one.name for one in path.parent.iterdir()} <= {"b.zip", "target"}
    return outcome


DOOR = Door("bundles", _attempt)
