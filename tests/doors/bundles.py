"""The door of bundles from elsewhere (``lib.measure.bundle.merge``): archives whose index or content are changed."""

import hashlib
import io
import json
import zipfile
from functools import cache

from lib import paths, store
from lib.measure import bundle, bundle_contents
from lib.tables import SCHEMA_VERSION
from tests.doors import ANY, SAME, VALUES, WRONG, Door, damaged, pass_through, pick

REFERENCE = min(paths.REFERENCE.glob("*/runs")).parent
RUN = "run_W6_organmnist3d_cnn3d_cpu"
NAMES = [f"profiles/{RUN}_eval.csv", f"profiles/{RUN}_eval.meta.json", f"runs/{RUN}.csv", f"runs/{RUN}.meta.json"]
CONTENTS = [b"", b"x", b"\x80\x04\x95", b"PAR1", b"<script>", b"[1", b"[]", b"\0" * 100]


def digests(files):
    """Return what an index says of files."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@cache
def original():
    """Return the index and files of a bundle of one run of one pass."""
    contents = {name: (REFERENCE / name).read_bytes() for name in NAMES}
    return {"format": bundle._FORMATS[-1], "machine": "box", "files": digests(contents),
            "schema_version": SCHEMA_VERSION}, contents


def archive(index, files, **how):
    """Return a bundle of this index and these files."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", **{"compression": zipfile.ZIP_DEFLATED, **how}) as packed:
        for name, content in {"bundle.json": json.dumps(index), **files}.items():
            packed.writestr(name, content)
    return target.getvalue()


def changed(index, files, **how):
    """Return the bundle with some files changed (None: left out), digests and all, then some entries of its index."""
    usual, contents = original()
    contents = {name: content for name, content in {**contents, **files}.items() if content is not None}
    return archive({**usual, "files": digests(contents), **index}, contents, **how)


def _merged(path, target):
    """Merge, and return what lies in the target; all of it must be readable tables within one machine's folder."""
    folder, _ = bundle.merge(path, target)
    assert folder.parent == target, f"merged into {folder}"
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for name in files:
        assert name.endswith((".csv", ".parquet", ".meta.json")), f"{name} was merged"
        if name.endswith(".csv"):
            store.read(folder / name, bundle_contents.table_of(name))
    return files


def _attempt(data, folder):
    how, name = pick(data, ["as it is", "content", "value", "bytes"], "how"), pick(data, NAMES, "file")
    index, files = original()
    kind = WRONG
    if how == "as it is":
        kind, content = SAME, archive(index, files, compression=pick(data, [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]))
    elif how == "content":
        content = changed({}, {name: pick(data, CONTENTS, "content")})
    elif how == "value":
        kind, content = ANY, changed({pick(data, sorted(index), "key"): pick(data, VALUES, "value")}, {})
    else:
        kind, content = ANY, damaged(archive(index, files), data)
    path, target = folder / "inner/b.zip", folder / "inner/target"
    path.parent.mkdir()
    path.write_bytes(content)
    outcome = pass_through(lambda: _merged(path, target), kind, f"a bundle, {how}", files)
    assert outcome == "read" or not any(target.rglob("*")), "a bundle that is refused leaves nothing"
    assert list(folder.iterdir()) == [path.parent], "something was written outside"
    assert {one.name for one in path.parent.iterdir()} <= {"b.zip", "target"}
    return outcome


DOOR = Door("bundles", _attempt)
