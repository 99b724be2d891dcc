"""A machine's results as a zip: packed, unpacked and replayed; what is hostile or damaged is refused, nothing written."""

import io
import shutil
import stat
import zipfile

import pytest

from lib import files, paths, store
from lib.measure import archive, machine, packing
from tests import output_of, refusal, refused
from tests.conftest import full_disk

COMMITTED = min(paths.REFERENCE.glob("*/runs")).parent
RUN = "run_W6_organmnist3d_cnn3d_cpu"
NAMES = [f"profiles/{RUN}_eval.csv", f"profiles/{RUN}_eval.meta.json", f"profiles/{RUN}_train.csv",
         f"profiles/{RUN}_train.meta.json", f"runs/{RUN}.csv", f"runs/{RUN}.meta.json"]


@pytest.fixture
def measured(home):
    """Put a finished run where this machine's own would lie, beside files that are no results."""
    for name in (*NAMES, "sweeps/elements_kernel_cold/sweep.parquet", "sweeps/elements_kernel_cold/sweep.meta.json"):
        shutil.copy(COMMITTED / name, files.folder((paths.DATA / name).parent))
    for name in ("runs/notes.txt", "runs/.lock.csv", "training/pets/last.pt", "imported/t4/x.csv", "gpu/x.csv"):
        path = paths.DATA / name
        files.folder(path.parent)
        path.write_text("x")
    return home


def test_results_are_packed_unpacked_and_replayed_by_the_machines_name(measured, monkeypatch):
    monkeypatch.chdir(measured)
    name = f"{COMMITTED.name}.zip"
    assert output_of("data", "pack") == f"{name}: 8 files\n", "the machine that measured, not the one that packs"
    assert "exists already" in refusal("data", "pack", name)
    assert f"the name {COMMITTED.name} is taken" in refusal("data", "unpack", name)
    printed = output_of("data", "unpack", name, "--name", "box")
    folder = paths.IMPORTED / "box"
    assert printed == f"{folder}: -p reference box, models --train box\n"
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == sorted(
        [*NAMES, "sweeps/elements_kernel_cold/sweep.parquet", "sweeps/elements_kernel_cold/sweep.meta.json"])
    assert all((folder / file).read_bytes() == (paths.DATA / file).read_bytes() for file in NAMES)
    assert archive.runs("replay", "box")["run_id"].tolist() == [RUN]
    assert "the name box is taken" in refusal("data", "unpack", name, "--name", "box")
    assert sorted(path.name for path in paths.IMPORTED.iterdir()) == ["box", "t4"], "no scratch folder is left"


def test_results_of_several_other_machines_are_not_packed_as_one(measured):
    path = paths.DATA / "runs/other.meta.json"
    store.write_json({"machine": "gpu-box"}, path)
    with refused(f"results of several machines, and not of this one: {COMMITTED.name}, gpu-box"):
        packing.pack(measured / "b.zip")
    store.write_json({"machine": machine.name()}, path)
    packing.pack(measured / "b.zip")
    with zipfile.ZipFile(measured / "b.zip") as packed:
        assert all(name.startswith(f"{machine.name()}/") for name in packed.namelist())


def zipped(*entries, mode=0):
    """Return a zip of a table and of more entries."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(zipfile.ZipInfo("box/runs/x.csv"), "a\n")  # without the time of now
        for name, text in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, text, zipfile.ZIP_DEFLATED)
    return content.getvalue()


OUTSIDE = ["/etc/x.csv", "../x.csv", "box/runs/../../../x.csv", "box\\runs\\x.csv", "box/runs/.x.csv", "box/x.csv",
           "box/home/x.csv", "box/models/x.pkl", "box/runs/", f"box/runs/{'x' * 300}.csv"]


@pytest.mark.parametrize("content, words", [
    *[(zipped((name, "x")), "is no file that data pack writes") for name in OUTSIDE],
    (zipped(("box/runs/y.csv", "/etc/passwd"), mode=stat.S_IFLNK | 0o777), "'box/runs/y.csv' is no file that data pack"),
    (zipped(("other/runs/x.csv", "a\n")), "holds the results of 2 machines"),
    (zipped(("box/runs/y.csv", bytes(2**21))), r"unpacks to 2 MB; 1 MB are read"),
    (zipped()[:-30], "is no readable zip"), (b"", "is no readable zip"),
    (zipped().replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"), "is no readable zip: .*encrypted")])
def test_a_zip_with_anything_else_is_refused_and_nothing_is_written(home, monkeypatch, content, words):
    monkeypatch.setattr(packing, "_MOST_MB", 1)
    (home / "b.zip").write_bytes(content)
    with refused(words):
        packing.unpack(home / "b.zip")
    assert not list(paths.IMPORTED.rglob("*")) and [path.name for path in home.iterdir() if path.is_file()] == ["b.zip"]


def test_a_name_that_means_something_else_is_no_machine(home):
    assert "nothing to pack" in refusal("data", "pack", home / "b.zip")
    (home / "b.zip").write_bytes(zipped())
    assert "the name cpu is taken" in refusal("data", "unpack", home / "b.zip", "--name", "cpu")
    assert "is no name" in refusal("data", "unpack", home / "b.zip", "--name", "../x")


def test_a_full_disk_leaves_no_half_zip_and_no_half_folder(measured):
    before = set(measured.rglob("*"))
    with full_disk(3000), refused("cannot be written"):
        packing.pack(measured / "b.zip")
    assert set(measured.rglob("*")) == before
    packing.pack(measured / "b.zip")
    with full_disk(3000), refused("cannot be written"):
        packing.unpack(measured / "b.zip", "box")
    assert sorted(path.name for path in paths.IMPORTED.iterdir()) == ["t4"]
