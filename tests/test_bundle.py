"""Bundles: packed here, merged there, twice, damaged, or hostile."""

import ast
import csv
import dataclasses
import hashlib
import inspect
import io
import json
import os
import resource
import signal
import stat
import zipfile
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from lib import __main__, files, paths, store, tables
from lib.cli import predict as verbs
from lib.config.notebooks import MachineParams, ProfileParams, SweepParams
from lib.errors import InputError
from lib.measure import archive, bundle, bundle_contents, ceilings, load, machine
from lib.measure.gpus.watch import GpuUse
from lib.measure.networks import campaign, end_to_end
from lib.measure.networks.case import Case
from lib.measure.operators import isolated, sweep
from lib.measure.training import profile_run
from lib.predict import registry
from lib.predict.analytic import roofline
from lib.predict.analytic.roofline import Roof
from lib.schedule.runtime import run_record


def measured(home, median=1.0):
    """Write one finished table of overheads with its provenance, as 01_machine would, and return its path."""
    path = paths.CEILINGS / "overheads_cpu.csv"
    path.unlink(missing_ok=True)
    row = ["cpu", "launch", median, 2.0, 3, "how", "h", "s"]
    store.write(pd.DataFrame([row], columns=tables.columns("overheads")), path, "overheads")
    store.write_meta(path, "overheads")
    return path


def test_there_and_back(home, tmp_path):
    path = measured(home)
    assert bundle.pack(tmp_path / "b.zip", "box") == ["ceilings/overheads_cpu.csv", "ceilings/overheads_cpu.meta.json"]
    folder, new = bundle.merge(tmp_path / "b.zip")
    assert (folder, new) == (paths.IMPORTED / "box", 2)
    assert (folder / "ceilings" / path.name).read_bytes() == path.read_bytes()
    assert bundle.merge(tmp_path / "b.zip") == (folder, 0), "merging again changes nothing"
    measured(home, median=5.0)
    bundle.pack(tmp_path / "c.zip", "box")
    assert bundle.merge(tmp_path / "c.zip") == (paths.IMPORTED / "box-v2", 2), "other content never overwrites"
    assert store.read(folder / "ceilings" / path.name, "overheads")["median_us"].tolist() == [1.0]
    assert bundle.merge(tmp_path / "b.zip", tmp_path / "reference")[0] == tmp_path / "reference" / "box"


def test_runs_that_were_cut_short_stay_behind(home, tmp_path):
    measured(home)
    paths.PROFILES.mkdir(parents=True)
    (paths.PROFILES / "run_W1_x_train.csv").write_text("torn")
    (paths.PROFILES / "run_W1_x_train.meta.json").write_text("{}")  # written when a run begins
    assert not any("run_W1" in name for name in bundle.pack(tmp_path / "b.zip", "box"))
    assert bundle.merge(tmp_path / "b.zip")[1] > 0


def test_nothing_to_pack_and_nothing_overwritten(home, tmp_path):
    with pytest.raises(InputError, match="nothing to pack"):
        bundle.pack(tmp_path / "b.zip", "box")
    measured(home)
    bundle.pack(tmp_path / "b.zip", "box")
    with pytest.raises(InputError, match="not overwritten"):
        bundle.pack(tmp_path / "b.zip", "box")


def forged(path, index, files):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", json.dumps(index))
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)


@pytest.mark.parametrize(("index", "files", "words"), [
    ({"format": 1, "machine": "../evil", "files": {}}, {}, "no name of a machine"),
    ({"format": 1, "machine": "..", "files": {}}, {}, "no name of a machine"),
    ({"format": 9, "machine": "box", "files": {}}, {}, "format 9"),
    ({"format": 1, "machine": "box", "files": {"runs/../../x": "0"}}, {"runs/../../x": "a"}, "lies outside"),
    ({"format": 1, "machine": "box", "files": {"elsewhere/x.csv": "0"}}, {"elsewhere/x.csv": "a"}, "lies outside"),
    ({"format": 1, "machine": "box", "files": {"runs/x.csv": "0"}}, {"runs/x.csv": "a"}, "digest"),
    ({"format": 1, "machine": "box", "files": {"runs/x.csv": "0"}}, {}, "damaged"),
    ({"format": 1, "machine": "box",
      "files": {"runs/x.csv": "7d1a54127b222502f5b79b5fb0803061152a44f92b37e23c6527baf665d4da9a"}}, {"runs/x.csv": "abcdefg"},
     "b.zip: runs/x.csv does not fit its table"),
])
def test_hostile_and_damaged_bundles_write_nothing(home, tmp_path, index, files, words):
    forged(tmp_path / "b.zip", index, files)
    with pytest.raises(InputError, match=words):
        bundle.merge(tmp_path / "b.zip")
    assert not paths.IMPORTED.exists()


def test_no_zip_at_all(home, tmp_path):
    with pytest.raises(InputError, match="missing"):
        bundle.merge(tmp_path / "none.zip")
    (tmp_path / "b.zip").write_text("hello")
    with pytest.raises(InputError, match="no bundle or is damaged"):
        bundle.merge(tmp_path / "b.zip")


RUN = "run_W6_organmnist3d_cnn3d_cpu"
REFERENCE = next(path.parent for path in sorted(paths.REFERENCE.glob("*/runs")))


CSV, META = f"runs/{RUN}.csv", f"runs/{RUN}.meta.json"
EVAL = f"profiles/{RUN}_eval.csv"


def copied(folder, *names):
    """Copy some tables of the reference machine, with their provenance, to a folder."""
    for name in names:
        for suffix in (".csv", ".meta.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}{suffix}").write_bytes((REFERENCE / f"{name}{suffix}").read_bytes())


@pytest.fixture
def finished(home):
    """Put a finished run, ceilings and points of the reference machine where this machine's own would lie."""
    copied(paths.DATA, f"runs/{RUN}", f"profiles/{RUN}_train", f"profiles/{RUN}_eval", "ceilings/ceilings_cpu",
           "ceilings/overheads_cpu", "points/points_cpu_fp32")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a folder with one run of one pass, and ``good.zip``, which it makes."""
    folder = tmp_path_factory.mktemp("small")
    copied(folder, f"runs/{RUN}", f"profiles/{RUN}_eval")
    bundle.pack(folder / "good.zip", "box", folder)
    return folder


@pytest.fixture
def good(small):
    """Return the index of a good bundle and its files by name."""
    with zipfile.ZipFile(small / "good.zip") as archive:
        return json.loads(archive.read("bundle.json")), {name: archive.read(name) for name in archive.namelist()}


def cells(path, **changed):
    """Write a CSV again with some columns changed in every row."""
    header, *rows = csv.reader(io.StringIO(path.read_text(), newline=""))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [header, *([changed.get(name, cell) for name, cell in zip(header, row, strict=True)] for row in rows)])
    path.write_text(text.getvalue())


def test_all_comes_back_as_it_was_byte_by_byte(finished, tmp_path):
    stray = ["runs/notes.txt", "runs/.run_x.csv.lock", "profiles/run_W9_x_train.csv", "runs/model.pkl", "ceilings/run.sh",
             "points/points.parquet"]
    for name in stray:
        (paths.DATA / name).write_text("x")
    names = bundle.pack(tmp_path / "b.zip", "box", host_name=True)
    assert len(names) == 12 and not set(names) & set(stray)
    folder, new = bundle.merge(tmp_path / "b.zip")
    assert new == 12
    assert all((folder / name).read_bytes() == (paths.DATA / name).read_bytes() for name in names)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == sorted(names)
    assert bundle.merge(tmp_path / "b.zip") == (folder, 0)


def test_users_texts_come_back_as_they_were(finished, tmp_path):
    label = '<img src=x onerror="alert(1)">, =1+1, é 日本 \\ /home/alice/x'
    cells(paths.DATA / "runs" / f"{RUN}.csv", label=label)
    meta = paths.DATA / "runs" / f"{RUN}.meta.json"
    facts = store.read_json(meta)
    facts["parameters"]["label"] = label
    store.write_json(facts, meta)
    bundle.pack(tmp_path / "b.zip", "box")
    folder, _ = bundle.merge(tmp_path / "b.zip")
    assert store.read(folder / "runs" / f"{RUN}.csv", "runs")["label"].tolist() == [label]
    assert store.read_json(folder / "runs" / f"{RUN}.meta.json") == facts


def test_no_host_name_and_no_folder_leaves_the_machine_unless_it_is_asked_for(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "name", lambda: "box")
    cells(paths.DATA / "runs" / f"{RUN}.csv", hostname="alices-laptop")
    meta = paths.DATA / "profiles" / f"{RUN}_train.meta.json"
    facts = store.read_json(meta)
    facts["software"]["environment"] = {"LD_PRELOAD": "/home/alice/lib/a.so:/opt/b.so", "OMP_NUM_THREADS": "2"}
    store.write_json({**facts, "data_note": "Images from /home/alice/pets. See https://medmnist.com/x"}, meta)
    assert __main__.main(["bundle", "--out", str(tmp_path / "b.zip")]) == 0
    assert __main__.main(["bundle", "--out", str(tmp_path / "asked.zip"), "--with-host-name"]) == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        index = json.loads(archive.read("bundle.json"))
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not any(word in content for content in contents.values() for word in (b"alice", b"/home", b"/opt"))
    assert {name: hashlib.sha256(contents[name]).hexdigest() for name in index["files"]} == index["files"]
    folder, _ = bundle.merge(tmp_path / "b.zip")
    rows = store.read(folder / "runs" / f"{RUN}.csv", "runs")
    assert rows["hostname"].tolist() == rows["hardware_id"].tolist()
    own = store.read(paths.DATA / "runs" / f"{RUN}.csv", "runs")
    assert rows.drop(columns="hostname").equals(own.drop(columns="hostname"))
    back = store.read_json(folder / "profiles" / f"{RUN}_train.meta.json")
    assert back["software"]["environment"] == {"LD_PRELOAD": "a.so:b.so", "OMP_NUM_THREADS": "2"}
    assert back["data_note"] == "Images from pets. See https://medmnist.com/x"
    folder, _ = bundle.merge(tmp_path / "asked.zip", tmp_path / "asked")
    assert store.read(folder / "runs" / f"{RUN}.csv", "runs")["hostname"].tolist() == ["alices-laptop"]


def test_a_table_whose_last_line_is_cut_short_is_not_taken_for_whole(home, tmp_path, good):
    index, contents = good
    contents[EVAL] = contents[EVAL][:-4]
    index["files"][EVAL] = hashlib.sha256(contents[EVAL]).hexdigest()
    forged(tmp_path / "b.zip", index, {**contents, "bundle.json": None})
    refused(tmp_path / "b.zip", "its last line is cut short")


def test_a_table_that_does_not_fit_is_not_packed(finished, tmp_path):
    path = paths.DATA / "profiles" / f"{RUN}_train.csv"
    path.write_text(path.read_text().replace("cnn3d", "cnn3d,more", 1))
    name = f"profiles/{RUN}_train.csv"
    with pytest.raises(InputError, match=f"/data: {name} does not fit its table: {name}: line 2 has"):
        bundle.pack(tmp_path / "b.zip", "box")
    assert not (tmp_path / "b.zip").exists()


def test_runs_of_a_workload_with_a_dot_in_its_name_are_packed(finished, tmp_path):
    for path in [*paths.DATA.glob("runs/*.csv"), *paths.DATA.glob("profiles/*.csv")]:
        cells(path, run_id=path.stem.replace("W6", "v1.2").removesuffix("_train").removesuffix("_eval").removesuffix("_test"))
        path.rename(path.with_name(path.name.replace("W6", "v1.2")))
    names = bundle.pack(tmp_path / "b.zip", "box")
    assert "profiles/run_v1.2_organmnist3d_cnn3d_cpu_train.csv" in names


def in_a_process_with_little_space(call, most):
    """Return whether ``call`` raised one line that says so, where no file may be larger than ``most`` bytes."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        call()
    except InputError as error:
        os._exit(int("cannot be written" not in str(error) or "\n" in str(error)))
    finally:
        os._exit(1)


def test_a_full_disk_leaves_no_half_bundle_and_no_half_file(home, small, tmp_path):
    before = set(tmp_path.rglob("*"))
    assert in_a_process_with_little_space(lambda: bundle.pack(tmp_path / "b.zip", "box", small), 3000)
    assert set(tmp_path.rglob("*")) == before
    bundle.pack(tmp_path / "b.zip", "box", small)
    assert in_a_process_with_little_space(lambda: bundle.merge(tmp_path / "b.zip"), 3000)
    assert not list(paths.IMPORTED.rglob("*.*"))
    assert bundle.merge(tmp_path / "b.zip")[1] == 4


def refused(path, words):
    """Assert that a bundle is refused in one line, and that nothing is written."""
    with pytest.raises(InputError, match=words) as error:
        bundle.merge(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    assert not paths.IMPORTED.exists()


@pytest.mark.parametrize("name", [
    "runs/model.pkl", "runs/x.sh", "runs/x.py", "runs/x.parquet", "index.html", "runs/", "/etc/x.csv", "runs/../runs/x.csv",
    "./runs/x.csv", "runs//x.csv", "runs\\x.csv", "runs/a/x.csv", "runs/.x.csv", "runs/x\n.csv", "runs/<b>.csv", "runs/x.CSV",
    "profiles/x.csv", "points/x.csv", "ceilings/x.csv", "sweeps/x.csv", f"runs/{'x' * 200}.csv", "runs/.csv", "bundle.json/x",
    "sweeps/a/../b/sweep.parquet", "sweeps/a/cpu/other.csv", "sweeps/a/sweep.csv", "sweeps/a/b/c/repeats.csv", "models/x.pkl",
    "models/x.json", "networks/a/b/networks.parquet", "matrix/x.csv", "contention/x.parquet", "schedule/a/run.sqlite"])
def test_what_no_bundle_holds_is_refused_by_its_name(home, tmp_path, good, name):
    index, contents = good
    index["files"][name] = hashlib.sha256(b"").hexdigest()
    forged(tmp_path / "b.zip", index, {**contents, "bundle.json": None, name: b""})
    refused(tmp_path / "b.zip", "lies outside")


@pytest.mark.parametrize(("name", "content", "words"), [
    ("runs/x.meta.json", b"{}", "comes without its table"), (CSV, b"", "no header"), (CSV, b"\xff\n", "no UTF-8"),
    (CSV, b"a,b\n1,2\n", f"{CSV} does not fit its table: .*missing columns"), (META, b"[]", "expected a mapping"),
    (META, b"{", "not readable JSON"), (META, b'{"table": 1}', "schema_version is missing"),
    (META, b'{"table": "runs", "table": "runs"}', "'table' is there twice"), (META, b"[" * 10**5, "not readable JSON")])
def test_what_is_no_table_is_refused(home, tmp_path, good, name, content, words):
    index, contents = good
    index["files"][name] = hashlib.sha256(content).hexdigest()
    forged(tmp_path / "b.zip", index, {**contents, "bundle.json": None, name: content})
    refused(tmp_path / "b.zip", words)


@pytest.mark.parametrize(("name", "changed", "words"), [
    (CSV, {"run_id": "../../evil"}, "holds rows of another run"), (CSV, {"batch_size": "-1"}, "batch_size"),
    (CSV, {"data_source": "elsewhere"}, "data_source"), (EVAL, {"run_id": "x"}, "holds rows of another run"),
    (EVAL, {"task_type": "train"}, "holds rows of another pass"), (META, {"table": "profile"}, "of table 'profile'"),
    (META, {"run_id": "x"}, "run 'x'"), (META, {"data_note": ""}, r"lacks \[data_note\]"),
    (META, {"sauce": 1}, "unknown name 'sauce'"), (META, {"metrics": {"train": 1}}, "metrics"),
    (META, {"load_at_end": {"seconds": "x"}}, "load_at_end"), (META, {"hardware": "none"}, "hardware")])
def test_what_does_not_fit_its_schema_is_refused(home, tmp_path, good, name, changed, words):
    index, contents = good
    path = tmp_path / "changed"
    path.write_bytes(contents[name])
    if name.endswith(".csv"):
        cells(path, **changed)
    else:
        path.write_text(json.dumps({**json.loads(contents[name]), **changed}))
    contents[name] = path.read_bytes()
    index["files"][name] = hashlib.sha256(contents[name]).hexdigest()
    forged(tmp_path / "b.zip", index, {**contents, "bundle.json": None})
    refused(tmp_path / "b.zip", f"{name} does not fit its table: .*{words}")


@pytest.mark.parametrize("index", [
    [], None, 1, "x", {}, {"format": 1}, {"format": "one", "machine": "box", "files": {}},
    {"format": 1, "machine": 1, "files": {}}, {"format": 1, "machine": "box", "files": []},
    {"format": 1, "machine": "box", "files": {"runs/x.csv": 1}},
    {"format": 1, "machine": "box", "files": {}, "more": 1}, {"format": 1, "machine": "box\n", "files": {}},
    {"format": 1, "machine": ".hidden", "files": {}}, {"format": 1, "machine": "/etc", "files": {}},
    {"format": 1, "machine": "x" * 300, "files": {}}, {"format": None, "machine": "box", "files": {}},
    {"format": "1", "machine": "box", "files": {}}, {"format": True, "machine": "box", "files": {}}])
def test_an_index_of_a_wrong_type_is_refused(home, tmp_path, index):
    forged(tmp_path / "b.zip", index, {})
    refused(tmp_path / "b.zip", r"bundle\.json|no name of a machine")


def entry(name, method=zipfile.ZIP_DEFLATED, mode=0):
    made = zipfile.ZipInfo(name)
    made.compress_type, made.external_attr = method, mode << 16
    return made


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_are_no_plain_files_are_refused(home, tmp_path, small, good):
    path = tmp_path / "b.zip"
    for made, words in ((entry(CSV), f"holds '{CSV}' twice"), (entry("bundle.json"), "holds 'bundle.json' twice"),
                        (entry("runs/x.csv"), r"its index does not name \[runs/x.csv\]"),
                        (entry("runs/x.csv", mode=stat.S_IFLNK | 0o777), "is a link or no file"),
                        (entry("runs/x.csv", mode=stat.S_IFIFO), "is a link or no file"),
                        (entry("runs/x.csv", zipfile.ZIP_BZIP2), "compressed in a way that a bundle is not"),
                        (entry("runs/x.csv", zipfile.ZIP_LZMA), "compressed in a way that a bundle is not")):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in good[1].items():
                archive.writestr(name, content)
            archive.writestr(made, b"/etc/passwd")
        refused(path, words)
    raw = (small / "good.zip").read_bytes()
    at = raw.index(b"PK\1\2")
    for offset, value, words in ((8, 1, "is encrypted"), (10, 99, "compressed in a way"), (10, 12, "compressed in a way")):
        path.write_bytes(raw[:at + offset] + bytes([value]) + raw[at + offset + 1:])
        refused(path, words)


def test_what_is_cut_short_or_changed_anywhere_is_refused_or_the_same(home, tmp_path, small, good):
    raw, path = (small / "good.zip").read_bytes(), tmp_path / "b.zip"
    for length in (0, 1, 21, 22, 100, len(raw) // 2, len(raw) - 22, len(raw) - 1):
        path.write_bytes(raw[:length])
        refused(path, "no bundle or is damaged")
    for at in range(0, len(raw), len(raw) // 60):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1:])
        try:
            folder, _ = bundle.merge(path, tmp_path / f"merged{at}")
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert (folder / CSV).read_bytes() == good[1][CSV]


def test_a_large_file_from_a_small_one_is_refused_before_it_is_read(home, tmp_path, monkeypatch):
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("bundle.json", "{}")
        with archive.open("runs/x.csv", "w") as file:
            for _ in range(30):
                file.write(bytes(10**6))
    monkeypatch.setattr(bundle, "_extract", None)
    refused(path, r"runs/x.csv has 30\.0 MB, packed 0\.\d\d; it has at most 200 MB, and 100 times of that")


def test_a_file_that_says_it_is_small_is_read_no_further(home, tmp_path, good):
    index, contents = good
    large = contents[CSV] + b"x" * 5_000_000
    index["files"][CSV] = hashlib.sha256(large).hexdigest()
    forged(tmp_path / "b.zip", index, {**contents, CSV: large, "bundle.json": None})
    raw = (tmp_path / "b.zip").read_bytes()
    (tmp_path / "b.zip").write_bytes(raw.replace(len(large).to_bytes(4, "little"), (900).to_bytes(4, "little")))
    refused(tmp_path / "b.zip", "damaged")


@pytest.mark.parametrize(("name", "value", "words"), [
    ("_FILE_MB", 0.001, "has at most 0.001 MB"), ("_JSON_MB", 0.0001, "has at most 0.0001 MB"),
    ("_ALL_MB", 0.01, "are more than a bundle may hold"), ("_MOST_FILES", 3, "more than a bundle|larger than a bundle"),
    ("_BUNDLE_MB", 0.001, "more than a bundle|larger than a bundle")])
def test_limits_hold_for_packing_and_for_merging(home, tmp_path, small, monkeypatch, name, value, words):
    monkeypatch.setattr(bundle, name, value)
    refused(small / "good.zip", words)
    with pytest.raises(InputError, match=words):
        bundle.pack(tmp_path / "b.zip", "box", small)
    assert not (tmp_path / "b.zip").exists()


def test_a_long_list_of_entries_is_not_read(home, tmp_path):
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("bundle.json", "{}")
    raw = bytearray((tmp_path / "b.zip").read_bytes())
    for place, width in ((-12, 2), (-10, 4)):
        more = bytearray(raw)
        more[place:place + width] = b"\xff" * width
        (tmp_path / "b.zip").write_bytes(more)
        refused(tmp_path / "b.zip", "larger than a bundle may be")


def test_a_merge_that_was_interrupted_goes_on(home, small):
    folder, _ = bundle.merge(small / "good.zip")
    (folder / CSV).unlink()
    assert bundle.merge(small / "good.zip") == (folder, 1)
    (folder / CSV).write_text("of a user")
    assert bundle.merge(small / "good.zip") == (folder.with_name("box-v2"), 4)
    assert (folder / CSV).read_text() == "of a user"


def test_what_is_no_file_is_no_bundle(home, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(InputError, match="is no file"):
            bundle.merge(path)


def test_out_is_a_new_file(finished, tmp_path, capsys):
    for taken in (paths.DATA / CSV, tmp_path, tmp_path / "no" / "b.zip"):
        with pytest.raises(SystemExit) as status:
            __main__.main(["bundle", "--out", str(taken)])
        assert status.value.code == 2
    assert not (tmp_path / "no").exists()


def test_provenance_of_every_table_of_the_reference_fits_its_schema():
    for folder in bundle_contents.FOLDERS:
        for path in (REFERENCE / folder).glob("**/*.meta.json"):
            bundle_contents.check(path, path.relative_to(REFERENCE).as_posix(), {})


def again(index, contents, path, **changed):
    """Write a bundle with some of its files changed (None: left out), digests and all."""
    contents = {name: content for name, content in {**contents, **changed, "bundle.json": None}.items() if name == "bundle.json"
                or content is not None}
    index["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if name != "bundle.json"}
    forged(path, index, contents)


def test_a_bundle_does_not_contradict_itself(home, tmp_path, good):
    index, contents = good
    header, row, *rest = contents[EVAL].decode().splitlines()
    again(index, contents, tmp_path / "doubled.zip", **{EVAL: "\n".join([header, row, *rest, row, ""]).encode()})
    refused(tmp_path / "doubled.zip", "is there twice")
    again(index, contents, tmp_path / "orphan.zip", **{CSV: None, META: None})
    refused(tmp_path / "orphan.zip", "of a run that was cut short")
    forged(tmp_path / "empty.zip", {**index, "files": {}}, {"bundle.json": None})
    refused(tmp_path / "empty.zip", "holds no table")
    for name in ("models", "Gavel", *archive.TRAININGS):
        again({**index, "machine": name}, contents, tmp_path / f"{name}.zip")
        refused(tmp_path / f"{name}.zip", "is no name of a machine")


MODEL = next(registry.SHIPPED.glob("cpu-*.json.gz"))
READERS = {"model": registry.load, "record": run_record.ends}


def row(table, **values):
    """Return a table of one row: what is not in ``values`` is the least that its column allows."""
    least = {c.name: values.get(c.name, (c.of or ("x",))[0] if c.kind == "text" else False if c.kind == "bool" else 1.0)
             for c in tables.TABLES[table]}
    return pd.DataFrame([least])


@pytest.fixture
def collected(home):
    """Put one of everything that is measured where this machine's own would lie; return the names that a bundle has of it."""
    for name in ("contention/contention", f"runs/{RUN}", f"profiles/{RUN}_eval"):
        copied(paths.DATA, name)
    for path in (REFERENCE / "schedule").glob("[rs]*"):
        files.create(files.folder(paths.DATA / "schedule" / "mine") / path.name, path.read_bytes())
    sweep = "sweeps/elements_kernel_cold"
    for name in (f"{sweep}/sweep", "networks/networks"):
        target = paths.DATA / (name if name.startswith("sweeps") else "networks/mine/networks")
        store.write(store.read(REFERENCE / f"{name}.parquet", name.rpartition("/")[2]).head(50),
                    target.with_name(f"{target.name}.parquet"), name.rpartition("/")[2])
        target.with_name(f"{target.name}.meta.json").write_bytes((REFERENCE / f"{name}.meta.json").read_bytes())
    for table in ("configs", "repeats", "energies"):
        store.write(row(table), paths.DATA / sweep / "cpu" / f"{table}.csv", table)
    store.write(row("cells", reason="no kernel image in /home/alice/lib/x.so"), paths.MATRIX / "cells.csv", "cells")
    files.create(files.folder(paths.MODELS) / MODEL.name, MODEL.read_bytes())
    return {"contention/contention.csv", CSV, META, EVAL, "schedule/mine/ran.json", "schedule/mine/schedule.csv",
            f"{sweep}/sweep.parquet", f"{sweep}/sweep.meta.json", "networks/mine/networks.parquet", "matrix/cells.csv",
            f"{sweep}/cpu/configs.csv", f"{sweep}/cpu/repeats.csv", f"{sweep}/cpu/energies.csv", f"models/{MODEL.name}"}


def test_everything_measured_comes_back(collected, tmp_path):
    names = bundle.pack(tmp_path / "b.zip", "box", readers=READERS)
    assert collected <= set(names)
    folder, new = bundle.merge(tmp_path / "b.zip", readers=READERS)
    assert new == len(names)
    different = {name for name in names if (folder / name).read_bytes() != (paths.DATA / name).read_bytes()}
    assert "matrix/cells.csv" in different
    assert {name for name in different if not name.startswith(("runs/", "profiles/"))} == {
        "matrix/cells.csv", "sweeps/elements_kernel_cold/sweep.meta.json"}
    assert store.read(folder / "matrix" / "cells.csv", "cells")["reason"].tolist() == ["no kernel image in x.so"]
    assert bundle.merge(tmp_path / "b.zip", readers=READERS) == (folder, 0)
    run_record.read(folder / "schedule" / "mine")


def test_what_was_cut_short_stays_behind(collected, tmp_path):
    for name in ("sweeps/elements_kernel_cold/sweep.parquet", "schedule/mine/ran.json"):
        (paths.DATA / name).unlink()
    names = bundle.pack(tmp_path / "b.zip", "box", readers=READERS)
    assert not [name for name in names if name.startswith(("sweeps/", "schedule/"))]
    assert f"models/{MODEL.name}" not in bundle.pack(tmp_path / "plain.zip", "box"), "nobody there who reads it"


def test_a_model_or_sweep_that_is_none_is_refused(collected, tmp_path):
    bundle.pack(tmp_path / "b.zip", "box", readers=READERS)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        index, contents = json.loads(archive.read("bundle.json")), {n: archive.read(n) for n in archive.namelist()}
    for name, content, words in ((f"models/{MODEL.name}", b"no gzip", "damaged"),
                                 ("sweeps/elements_kernel_cold/sweep.parquet", b"PAR1", "not readable Parquet"),
                                 ("sweeps/elements_kernel_cold/sweep.meta.json", None, "comes without its provenance"),
                                 ("schedule/mine/ran.json", b"{}", "ran.json")):
        again(dict(index), contents, tmp_path / "bad.zip", **{name: content})
        with pytest.raises(InputError, match=words) as error:
            bundle.merge(tmp_path / "bad.zip", readers=READERS)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="it is a model, which nobody here reads"):
        bundle.merge(tmp_path / "b.zip")
    assert not paths.IMPORTED.exists()


@pytest.mark.parametrize("version", ["3000", "two", "", "-1"])
def test_another_schema_is_refused_in_one_line(home, tmp_path, good, version):
    index, contents = good
    forged(tmp_path / "b.zip", {**index, "schema_version": version}, {**contents, "bundle.json": None})
    refused(tmp_path / "b.zip", f"schema '{version}'; this version reads up to")
    meta = json.dumps({**json.loads(contents[META]), "schema_version": version}).encode()
    again(index, contents, tmp_path / "b.zip", **{META: meta})
    refused(tmp_path / "b.zip", f"schema '{version}'; this version reads up to")


def test_a_bundle_of_the_first_format_is_read(home, tmp_path, good):
    index, contents = good
    index = {name: value for name, value in index.items() if name != "schema_version"}
    forged(tmp_path / "b.zip", {**index, "format": 1}, {**contents, "bundle.json": None})
    assert bundle.merge(tmp_path / "b.zip")[1] == 4


def test_two_machines_of_one_name_stay_apart(home, tmp_path, small, good):
    folder, _ = bundle.merge(small / "good.zip")
    measured(home)  # another table, of hardware "h", so that no file is there twice
    bundle.pack(tmp_path / "other.zip", "box")
    assert bundle.merge(tmp_path / "other.zip") == (folder.with_name("box-v2"), 2)
    assert bundle.merge(tmp_path / "other.zip") == (folder.with_name("box-v2"), 0)
    assert bundle.merge(small / "good.zip") == (folder, 0)
    index, contents = good
    again({**index, "machine": REFERENCE.name}, contents, tmp_path / "committed.zip")
    assert bundle.merge(tmp_path / "committed.zip")[0].name == f"{REFERENCE.name}-v2", "the committed one has the name"


def test_a_sweep_that_went_on_goes_on_here_and_an_older_bundle_changes_nothing(collected, tmp_path):
    sweep = paths.DATA / "sweeps" / "elements_kernel_cold"
    bundle.pack(tmp_path / "first.zip", "box")
    folder, _ = bundle.merge(tmp_path / "first.zip")
    for path, table in ((sweep / "cpu" / "repeats.csv", "repeats"), (paths.MATRIX / "cells.csv", "cells")):
        with closing(store.Appender(path, table, resume=True)) as file:
            file.append(row(table, round=2, repeat=2).iloc[0].to_list())
    table = store.read(sweep / "sweep.parquet", "sweep")
    store.write(table.assign(n=table["n"] + 1), sweep / "sweep.parquet", "sweep", derived=True)
    bundle.pack(tmp_path / "second.zip", "box")
    assert bundle.merge(tmp_path / "second.zip") == (folder, 3)
    names = ("sweep.parquet", "cpu/repeats.csv", "cpu/configs.csv")
    assert all((folder / "sweeps" / sweep.name / name).read_bytes() == (sweep / name).read_bytes() for name in names)
    assert bundle.merge(tmp_path / "first.zip") == (folder, 0)
    assert store.read(folder / "sweeps" / sweep.name / "sweep.parquet", "sweep")["n"].equals(table["n"] + 1)
    (sweep / "cpu" / "repeats.csv").write_bytes(store.encoded(row("repeats", latency_ms=9.0), ".csv"))
    bundle.pack(tmp_path / "twin.zip", "box")
    assert bundle.merge(tmp_path / "twin.zip")[0] == folder.with_name("box-v2"), "an equal machine's sweep of the same name"


def test_no_machine_has_a_name_that_is_trained_from_something_else():
    compared = [node for node in ast.walk(ast.parse(inspect.getsource(verbs._models))) if isinstance(node, ast.Compare)
                and ast.unparse(node.left) == "options.train"]
    words = {node.value for one in compared for node in ast.walk(one) if isinstance(node, ast.Constant)}
    assert words == set(archive.TRAININGS), "the words that the verb compares with"


def test_provenance_has_a_place_for_all_that_is_known_of_a_load(home, tmp_path):
    for measured_by, stored in ((load.Load, bundle_contents.Load), (GpuUse, bundle_contents.GpuUse)):
        assert [field.name for field in dataclasses.fields(measured_by)] == list(stored.model_fields)
    seen = load.Load(1.0, 1.0, 0.0, 0.0, 0.0, GpuUse(None, 1410, "power brake", "the driver does not tell who uses the GPU"))
    store.write_meta(measured(home), "overheads", load_at_start=dataclasses.asdict(seen))
    bundle.pack(tmp_path / "b.zip", "box")
    assert bundle.merge(tmp_path / "b.zip")[1] == 2


@pytest.mark.slow
def test_what_is_measured_now_is_packed_and_merged(home, quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "in_a_process", lambda cases, device, case_s, _: end_to_end._measure(cases, device, case_s))
    monkeypatch.setattr(isolated, "OPERATORS", 2)
    ceilings.measure_ceilings(MachineParams(device="cpu", budget_s=1))
    profile_run.measure(ProfileParams(workload="W6", device="cpu", data_source="synthetic", iters=2, warmup_iters=1, warmup_s=0,
                                      budget_s=0))
    frame, facts = isolated.measure_work(["simple_cnn"], 2, "fp32", "cpu", 0.2)
    roof = Roof("cpu", "fp32", "measured", facts["hardware_id"], 1e6, {"RAM": 1e6})
    isolated.save_points(roofline.points(frame, [roof]), facts)
    sweep.measure_sweep(SweepParams(op="activation", device="cpu", count=1, budget_s=0, rounds=2, visit_ms=2, patience_s=0))
    table, facts = campaign.measure([(Case("simple_cnn", "infer", 1, "3x28x28"), "default")], rounds=1, case_s=0.05)
    campaign.write(table, paths.NETWORKS / "mine" / "networks.parquet", **facts, rounds=1, cases=1)
    assert __main__.main(["bundle", "--out", str(tmp_path / "b.zip")]) == 0
    assert __main__.main(["import", "bundle", str(tmp_path / "b.zip")]) == 0
    (folder,) = paths.IMPORTED.iterdir()
    assert {path.parent.relative_to(folder).parts[0] for path in folder.glob("**/*.meta.json")} == {
        "ceilings", "networks", "points", "profiles", "runs", "sweeps"}


def calibrated(day):
    """Have a model calibrated on a day where this machine's own lie."""
    model = registry.load(MODEL)
    model.facts["calibrated_utc"] = f"2026-11-{day}T10:00:00.000+00:00"
    return model.save(paths.MODELS / MODEL.name)


def test_networks_and_a_model_that_were_written_anew_replace_those_of_the_same_machine(collected, tmp_path):
    networks, model = paths.NETWORKS / "mine" / "networks.parquet", calibrated(20)
    hardware_id = store.read_json(networks.with_name("networks.meta.json"))["hardware_id"]

    def merged(name):
        if not (tmp_path / name).exists():
            bundle.pack(tmp_path / name, "box", readers=READERS)
        return bundle.merge(tmp_path / name, readers=READERS)

    def written(table):
        store.write_meta(store.write(table, networks, "networks", derived=True), "networks", hardware_id=hardware_id)

    folder, _ = merged("first.zip")
    table = store.read(networks, "networks")
    written(pd.concat([table.assign(n=table["n"] + 1), table.tail(1).assign(batch_size=999)]))
    calibrated(21)
    assert merged("second.zip") == (folder, 3), "the table with its provenance, and the model"
    assert (folder / "networks" / "mine" / "networks.parquet").read_bytes() == networks.read_bytes()
    assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    assert merged("first.zip") == (folder, 0), "an older bundle changes nothing"
    written(table.head(3))
    assert merged("others.zip")[0] == folder.with_name("box-v2"), "what lacks cases of the one before is no later one of it"


def test_a_sweep_that_was_asked_for_again_is_the_same_sweep(collected, tmp_path):
    bundle.pack(tmp_path / "first.zip", "box")
    folder, _ = bundle.merge(tmp_path / "first.zip")
    meta = paths.DATA / "sweeps" / "elements_kernel_cold" / "sweep.meta.json"
    store.write_json({**store.read_json(meta), "written_utc": store.utc_now()}, meta)
    bundle.pack(tmp_path / "second.zip", "box")
    assert bundle.merge(tmp_path / "second.zip") == (folder, 1)


def test_a_bundle_has_the_name_of_the_machine_that_measured(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "name", lambda: "node-that-collects")
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["bundle"]) == 0
    assert (tmp_path / f"{REFERENCE.name}.zip").is_file()
    path = store.write(row("sweep", device="cuda:0"), paths.SWEEPS / "s" / "sweep.parquet", "sweep")
    store.write_meta(path, "sweep", started_utc="x", devices={"cuda:0": {"machine": "gpu-box"}})
    capsys.readouterr()
    assert __main__.main(["bundle", "--out", str(tmp_path / "b.zip")]) == 2
    assert f"several machines measured, and this one did not: {REFERENCE.name}, gpu-box" in capsys.readouterr().err
    monkeypatch.setattr(machine, "name", lambda: "gpu-box")
    assert bundle.machine_of("gpu-box") == "gpu-box", "this machine's bundle is its own"


def test_no_card_and_no_process_leaves_the_machine(home, tmp_path):
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    reason = f"cuda:0 is now {uuid} and was {uuid[4:]}: a card is lost"
    path = store.write(row("sweep", device="cuda:0", reason=reason), paths.SWEEPS / "s" / "sweep.parquet", "sweep")
    store.write_meta(path, "sweep", started_utc="x", failures={"cuda:0": reason}, devices={
        "cuda:0": {"hardware_id": "h", "threads": 2, "card": uuid[4:], "pid": 4711}})
    bundle.pack(tmp_path / "b.zip", "box")
    folder, _ = bundle.merge(tmp_path / "b.zip")
    facts = store.read_json(folder / "sweeps" / "s" / "sweep.meta.json")
    assert facts["devices"] == {"cuda:0": {"hardware_id": "h", "threads": 2}}
    assert facts["failures"] == {"cuda:0": "cuda:0 is now GPU and was GPU: a card is lost"}
    assert store.read(folder / "sweeps" / "s" / "sweep.parquet", "sweep")["reason"].tolist() == [facts["failures"]["cuda:0"]]
    bundle.pack(tmp_path / "asked.zip", "box", host_name=True)
    folder, _ = bundle.merge(tmp_path / "asked.zip", tmp_path / "asked")
    assert store.read_json(folder / "sweeps" / "s" / "sweep.meta.json")["devices"]["cuda:0"]["pid"] == 4711
