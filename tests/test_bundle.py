"""Bundles: packed here, merged there, twice, damaged, or hostile."""

import io
import json
import os
import shutil
import stat
import zipfile
from contextlib import closing

import pandas as pd
import pytest

from lib import files, paths, store
from lib.config.notebooks import ProfileParams, SweepParams
from lib.errors import InputError
from lib.measure import archive, bundle, bundle_contents, machine
from lib.measure.networks import campaign
from lib.measure.networks.case import Case
from lib.measure.operators import sweep, visitor
from lib.measure.training import profile_run
from lib.predict import registry
from lib.schedule.run import record as run_record
from tests import output_of, refusal, row
from tests import refused as line
from tests.conftest import full_disk
from tests.doors.bundles import NAMES, REFERENCE, RUN, changed, original
from tests.doors.bundles import archive as packed
from tests.visitors import InProcess

pytestmark = pytest.mark.slow

EVAL, _, CSV, META = NAMES
SWEEP = "sweeps/elements_kernel_cold"
MODEL = next(registry.SHIPPED.glob("cpu-*.json.gz"))
READERS = {"model": registry.load, "record": run_record.ends, "summary": store.read_json}
TUNED = "training/pets/tuned"


def measured(median=1.0):
    """Write one finished table of overheads with its provenance, as 01_machine would, and return its path."""
    path = paths.CEILINGS / "overheads_cpu.csv"
    path.unlink(missing_ok=True)
    store.write(row("overheads", median_us=median, hardware_id="h"), path, "overheads")
    store.write_meta(path, "overheads")
    return path


def swept(reason="", failures=(), **device):
    """Write a sweep of one point on one device with its provenance."""
    path = store.write(row("sweep", device="cuda:0", reason=reason), paths.SWEEPS / "s/sweep.parquet", "sweep")
    store.write_meta(path, "sweep", started_utc="x", failures=dict(failures), devices={"cuda:0": device})


def copied(folder, *names):
    """Copy some tables of the reference machine, with their provenance, to a folder."""
    for name in names:
        for suffix in (".csv", ".meta.json"):
            shutil.copy(REFERENCE / f"{name}{suffix}", files.folder((folder / name).parent))


def edited(content, change):
    """Return a CSV with some cells, or JSON with some facts, that are others; a function or bytes say what else it becomes."""
    if callable(change):
        return change(content)
    if not isinstance(change, dict):
        return change
    if content.startswith(b"{"):
        return store.encoded_json({**json.loads(content), **change})
    frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    return store.encoded(frame.assign(**change), ".csv")


def edit(path, **change):
    path.write_bytes(edited(path.read_bytes(), change))


def sent(name="b", target=None, **how):
    """Pack what was measured here, once by each name, and return what a merge of that bundle returns."""
    path = paths.OUTPUT / f"{name}.zip"
    if not path.exists():
        bundle.pack(path, "box", readers=READERS, **how)
    return bundle.merge(path, target, readers=READERS)


def refused(content, words):
    """Assert that a bundle is refused in a line that names it, and that nothing is written."""
    path = paths.OUTPUT / "refused.zip"
    path.write_bytes(content)
    with line(words) as error:
        bundle.merge(path)
    assert str(path) in str(error.value)
    assert not paths.IMPORTED.exists()


@pytest.fixture
def finished(home):
    """Put a finished run of one pass where this machine's own would lie."""
    copied(paths.DATA, f"runs/{RUN}", f"profiles/{RUN}_eval")
    return paths.DATA


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return a folder with one of everything that is measured, and the names that a bundle has of it."""
    folder = tmp_path_factory.mktemp("everything")
    copied(folder, f"runs/{RUN}", f"profiles/{RUN}_eval", "ceilings/ceilings_cpu",
           "points/points_cpu_fp32")
    for path in (*(REFERENCE / "schedule").glob("[rs]*"), MODEL):
        target = "models" if path == MODEL else "schedule/mine"
        shutil.copy(path, files.folder(folder / target))
    for name, place in ((f"{SWEEP}/sweep", SWEEP), ("networks/networks", "networks/mine")):
        source, table = REFERENCE / f"{name}.parquet", name.rpartition("/")[2]
        store.write(store.read(source, table).head(50), folder / place / source.name, table)
        shutil.copy(REFERENCE / f"{name}.meta.json", folder / place)
    for table in ("configs", "repeats", "energies"):
        store.write(row(table), folder / SWEEP / f"cpu/{table}.csv", table)
    copied(folder, f"profiles/{RUN}_train")
    for suffix, change in ((".csv", {"run_id": "tuned"}),
                           (".meta.json", {"run_id": "tuned", "parameters": {"root": "/home/alice/pets"}})):
        target = files.folder(folder / TUNED) / f"profile{suffix}"
        shutil.move(folder / f"profiles/{RUN}_train{suffix}", target)
        edit(target, **change)
    store.write(row("history"), folder / TUNED / "history.csv", "history")
    store.write_json({"run": "tuned", "folder": "/home/alice/data/training/pets/tuned"}, folder / TUNED / "summary.json")
    store.write(row("cells", reason="no kernel image in /home/alice/lib/x.so"), folder / "matrix/cells.csv", "cells")
    return folder, {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.name != "jobs.csv"}


@pytest.fixture
def collect(home, everything):
    """Return a way to put what was measured, or some folders of it, where this machine's own would lie."""
    def copy(*names):
        for name in names or os.listdir(everything[0]):
            shutil.copytree(everything[0] / name, paths.DATA / name)
        return everything[1]
    return copy


def test_there_and_back(home):
    with line("nothing to pack"):
        sent()
    path = measured()
    folder, new = sent()
    assert folder == paths.IMPORTED / "box" and new == 2
    assert (folder / "ceilings" / path.name).read_bytes() == path.read_bytes()
    assert sent() == (folder, 0), "merging again changes nothing"
    with line("not overwritten"):
        bundle.pack(home / "b.zip", "box")
    assert sent(target=home / "reference")[0] == home / "reference/box"


def test_everything_measured_comes_back(collect, home):
    expected = collect()
    for name in ("runs/notes.txt", f"{TUNED}/train_config.json", f"{TUNED}/last.pt", "runs/.run_x.csv.lock", "runs/model.pkl",
                 "ceilings/run.sh", "points/points.parquet"):
        (paths.DATA / name).write_text("x")
    folder, new = sent()
    merged = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
    assert set(merged) == expected and new == len(merged)
    different = {name for name in merged if merged[name] != (paths.DATA / name).read_bytes()}
    assert different == {CSV, "matrix/cells.csv", f"{SWEEP}/sweep.meta.json", f"{TUNED}/profile.meta.json",
                         f"{TUNED}/summary.json"}, "a host, folders and cards are left out"
    assert not any(b"alice" in content for content in merged.values())
    assert store.read(folder / "matrix/cells.csv", "cells")["reason"].tolist() == ["no kernel image in x.so"]
    run_record.read(folder / "schedule/mine")


def test_what_was_cut_short_stays_behind(collect, home):
    expected = collect()
    for name in (f"{SWEEP}/sweep.parquet", "schedule/mine/ran.json", f"{TUNED}/summary.json", CSV):
        (paths.DATA / name).unlink()
    (paths.DATA / "runs/run_W1.meta.json").write_text("{}")  # written when a run begins
    names = bundle.pack(home / "b.zip", "box", readers=READERS)
    cut = ("sweeps/", "schedule/", "runs/", "profiles/", "training/")
    assert set(names) == {name for name in expected if not name.startswith(cut)}
    assert bundle.merge(home / "b.zip", readers=READERS)[1] == len(names)


def test_users_texts_come_back_as_they_were(finished):
    label = '<img src=x onerror="alert(1)">, =1+1, é 日本 \\ /home/alice/x'
    edit(finished / CSV, label=label)
    edit(finished / META, parameters={"label": label})
    folder, _ = sent()
    assert store.read(folder / CSV, "runs")["label"].tolist() == [label]
    assert store.read_json(folder / META)["parameters"] == {"label": label}


def test_no_host_name_and_no_folder_leaves_the_machine_unless_it_is_asked_for(finished, home, monkeypatch):
    monkeypatch.setattr(machine, "name", lambda: "box")
    run = store.read(finished / CSV, "runs").assign(hostname="alices-laptop", data_root="/home/alice/pets")
    store.write(run, finished / CSV, "runs", derived=True)
    edit(finished / META, software={"environment": {"LD_PRELOAD": "/home/alice/lib/a.so:/opt/b.so", "OMP_NUM_THREADS": "2"}},
         data_note="Images from /home/alice/pets. See https://medmnist.com/x")
    for words in (["b.zip"], ["asked.zip", "--with-host-name"]):
        output_of("bundle", "--out", home / words[0], *words[1:])
    with zipfile.ZipFile(home / "b.zip") as file:
        contents = b"".join(map(file.read, file.namelist()))
    assert not any(word in contents for word in (b"alice", b"/home", b"/opt"))
    folder, _ = sent()
    row = store.read(folder / CSV, "runs").iloc[0]
    assert row["hostname"] == row["hardware_id"] and row["data_root"] == "pets"
    back = store.read_json(folder / META)
    assert back["software"]["environment"] == {"LD_PRELOAD": "a.so:b.so", "OMP_NUM_THREADS": "2"}
    assert back["data_note"] == "Images from pets. See https://medmnist.com/x"
    folder, _ = sent("asked", home / "asked")
    assert store.read(folder / CSV, "runs")["hostname"].tolist() == ["alices-laptop"]


def test_no_card_and_no_process_leaves_the_machine(home):
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    reason = f"cuda:0 is now {uuid} and was {uuid[4:]}: a card is lost"
    swept(reason, failures={"cuda:0": reason}, hardware_id="h", threads=2, card=uuid[4:], pid=4711)
    folder, _ = sent()
    facts = store.read_json(folder / "sweeps/s/sweep.meta.json")
    assert facts["devices"] == {"cuda:0": {"hardware_id": "h", "threads": 2}}
    assert facts["failures"] == {"cuda:0": "cuda:0 is now GPU and was GPU: a card is lost"}
    assert store.read(folder / "sweeps/s/sweep.parquet", "sweep")["reason"].tolist() == [facts["failures"]["cuda:0"]]


def test_a_full_disk_leaves_no_half_bundle_and_no_half_file(finished, home):
    before = set(home.rglob("*"))
    with full_disk(3000), line("cannot be written"):
        bundle.pack(home / "b.zip", "box")
    assert set(home.rglob("*")) == before
    bundle.pack(home / "b.zip", "box")
    with full_disk(3000), line("cannot be written"):
        sent()
    assert not list(paths.IMPORTED.rglob("*.*"))
    assert sent()[1] == 4


OUTSIDE = [
    "runs/model.pkl", "index.html", "/etc/x.csv", "../x.csv", "runs/../runs/x.csv", "runs\\x.csv", "runs/.x.csv",
    "runs/<b>.csv", "runs/x.csv.exe", f"runs/{'x' * 200}.csv", "profiles/x.csv", "sweeps/a/../b/sweep.parquet",
    "models/x.pkl", "matrix/x.csv", "schedule/a/run.sqlite"]
SCHEMA = "schema .*; this version reads up to"


@pytest.mark.parametrize("index, words", [
    *[({"machine": name}, "is no name of a machine") for name in ("../evil", ".hidden", "box\n", *archive.TRAININGS)],
    ({"files": {CSV: 1}}, r"bundle\.json: files.* = "), ({"schema_version": "3000"}, SCHEMA), ({"format": 9}, "has format 9"),
    ({"more": 1}, r"bundle\.json: unknown name 'more'"), ({"files": {}}, "holds no table"),
    ({"files": {"runs/x.csv": "0"}}, r"damaged: it lacks \[runs/x.csv\], and its index does not name \[.*csv")])
def test_an_index_that_is_wrong_is_refused(home, index, words):
    refused(changed(index, {}), words)


@pytest.mark.parametrize("name, change, words", [
    *[(name, b"", "lies outside") for name in OUTSIDE],
    ("runs/x.meta.json", b"{}", "comes without its table"), (CSV, None, "of a run that was cut short"),
    (CSV, b"a,b\n1,2\n", "missing columns"),
    (CSV, {"run_id": "../../evil"}, "holds rows of another run"), (CSV, {"batch_size": "-1"}, "batch_size"),
    (EVAL, {"task_type": "train"}, "holds rows of another pass"),
    (EVAL, lambda content: content[:-4], "its last line is cut short"),
    (EVAL, lambda content: content + content.splitlines(keepends=True)[1], "row .* is there twice"),
    (META, b"[" * 10**5, "not readable JSON"), (META, {"table": "profile"}, "of table 'profile'"),
    (META, {"data_note": ""}, r"lacks \[data_note\]"), (META, {"sauce": 1}, "unknown name 'sauce'"),
    (META, {"load_at_end": {"seconds": "x"}}, "load_at_end"), (META, {"schema_version": "3000"}, SCHEMA)])
def test_a_file_that_is_wrong_is_refused(home, name, change, words):
    content = edited(original()[1].get(name, b""), change)
    fits = "" if name not in NAMES or content is None else f"{name} does not fit its table: .*"
    refused(changed({}, {name: content}), fits + words)


def entry(name, method=zipfile.ZIP_DEFLATED, mode=0):
    made = zipfile.ZipInfo(name)
    made.compress_type, made.external_attr = method, mode << 16
    return made


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_are_no_plain_files_are_refused(home):
    raw = changed({}, {})
    for made, words in ((entry(CSV), f"holds '{CSV}' twice"), (entry("runs/x.csv"), r"its index does not name \[runs/x.csv\]"),
                        (entry("runs/x.csv", mode=stat.S_IFLNK | 0o777), "is a link or no file"),
                        (entry("runs/x.csv", zipfile.ZIP_LZMA), "compressed in a way that a bundle is not")):
        content = io.BytesIO(raw)
        with zipfile.ZipFile(content, "a") as file:
            file.writestr(made, b"/etc/passwd")
        refused(content.getvalue(), words)


def test_a_bundle_that_is_encrypted_or_states_more_entries_than_one_may_have_is_refused(home):
    raw = changed({}, {})
    at = raw.index(b"PK\1\2")
    refused(raw[:at + 8] + b"\1" + raw[at + 9:], "is encrypted")
    refused(raw[:-12] + b"\xff\xff" + raw[-10:], "larger than a bundle may be")


def test_what_is_cut_short_or_changed_anywhere_is_refused_or_the_same(home):
    (index, contents), raw = original(), changed({}, {})
    refused(packed(index, {**contents, CSV: contents[CSV] + b"\n"}), f"{CSV} is damaged .its digest does not fit")
    for length in (0, 22, len(raw) // 2, len(raw) - 1):
        refused(raw[:length], "no bundle or is damaged")
    for at in range(0, len(raw), len(raw) // 60):
        (home / "b.zip").write_bytes(raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1:])
        try:
            folder, _ = bundle.merge(home / "b.zip", home / f"merged{at}")
        except InputError:
            continue
        assert (folder / CSV).read_bytes() == contents[CSV]


def test_a_large_file_from_a_small_one_is_refused_before_it_is_read(home, monkeypatch):
    monkeypatch.setattr(bundle, "_extract", None)
    refused(changed({}, {"runs/x.csv": bytes(3 * 10**6)}),
            r"runs/x.csv has 3\.0 MB, packed 0\.\d\d; it has at most 200 MB, and 100 times of that")


@pytest.mark.parametrize("name, value, words", [
    ("_FILE_MB", 0.001, "has at most 0.001 MB"), ("_ALL_MB", 0.01, "are more than a bundle may hold"),
    ("_MOST_FILES", 3, "more than a bundle|larger than a bundle")])
def test_limits_hold_for_packing_and_for_merging(finished, home, monkeypatch, name, value, words):
    monkeypatch.setattr(bundle, name, value)
    refused(changed({}, {}), words)
    with line(words):
        bundle.pack(home / "b.zip", "box")
    assert not (home / "b.zip").exists()


def test_a_merge_that_was_interrupted_goes_on(finished):
    folder, _ = sent()
    (folder / CSV).unlink()
    assert sent() == (folder, 1)
    (folder / CSV).write_text("of a user")
    assert sent() == (folder.with_name("box-v2"), 4)
    assert (folder / CSV).read_text() == "of a user"


def test_what_is_no_file_is_no_bundle(home):
    os.mkfifo(home / "pipe")
    for name, words in (("pipe", "is no file"), (".", "is no file"), ("none.zip", "is missing")):
        with line(words):
            bundle.merge(home / name)


def test_provenance_of_every_table_of_the_reference_fits_its_schema():
    for folder in bundle_contents.FOLDERS:
        for path in (REFERENCE / folder).glob("**/*.meta.json"):
            bundle_contents.check(path, path.relative_to(REFERENCE).as_posix(), {})


def test_a_model_sweep_or_record_that_is_none_is_refused(collect, home):
    names = collect("sweeps", "models", "schedule")
    contents = {name: (paths.DATA / name).read_bytes() for name in names if (paths.DATA / name).is_file()}
    for name, content, words in ((f"models/{MODEL.name}", b"no gzip", "damaged"),
                                 (f"{SWEEP}/sweep.parquet", b"PAR1", "not readable Parquet"),
                                 (f"{SWEEP}/sweep.meta.json", None, "comes without its provenance"),
                                 ("schedule/mine/ran.json", b"{}", "ran.json")):
        (home / "bad.zip").write_bytes(changed({}, {**contents, name: content}))
        with line(words):
            bundle.merge(home / "bad.zip", readers=READERS)
    refused(changed({}, contents), "it is a .*, which nobody here reads")


def test_a_bundle_of_the_first_format_is_read(home):
    index = {**original()[0], "format": 1}
    del index["schema_version"]
    (home / "b.zip").write_bytes(packed(index, original()[1]))
    assert sent()[1] == 4


def test_two_machines_of_one_name_stay_apart(home):
    (home / "good.zip").write_bytes(changed({}, {}))
    folder, _ = sent("good")
    measured()  # another table, of hardware "h", so that no file is there twice
    assert sent("other") == (folder.with_name("box-v2"), 2)
    assert sent("other") == (folder.with_name("box-v2"), 0)
    (home / "committed.zip").write_bytes(changed({"machine": REFERENCE.name}, {}))
    assert sent("committed")[0].name == f"{REFERENCE.name}-v2", "the committed one has the name"


def test_a_sweep_that_went_on_goes_on_here_and_an_older_bundle_changes_nothing(collect):
    collect("sweeps")
    folder, _ = sent("first")
    own, there = paths.DATA / SWEEP, folder / SWEEP
    with closing(store.Appender(own / "cpu/repeats.csv", "repeats", resume=True)) as file:
        file.append(row("repeats", round=2).iloc[0].to_list())
    table = store.read(own / "sweep.parquet", "sweep")
    store.write(table.assign(n=table["n"] + 1), own / "sweep.parquet", "sweep", derived=True)
    assert sent("second") == (folder, 2)
    assert sent("first") == (folder, 0)
    for name in ("sweep.parquet", "cpu/repeats.csv", "cpu/configs.csv"):
        assert (there / name).read_bytes() == (own / name).read_bytes()
    (own / "cpu/repeats.csv").write_bytes(store.encoded(row("repeats", latency_ms=9.0), ".csv"))
    assert sent("twin")[0] == folder.with_name("box-v2"), "an equal machine's sweep of the same name"


def test_networks_and_a_model_that_were_written_anew_replace_those_of_the_same_machine(collect):
    collect("networks", "models")
    networks, model = paths.NETWORKS / "mine/networks.parquet", paths.MODELS / MODEL.name
    hardware_id = store.read_json(networks.with_name("networks.meta.json"))["hardware_id"]
    table = store.read(networks, "networks")

    def written(day, table):
        content = registry.load(MODEL)
        content.facts["calibrated_utc"] = f"2026-11-{day}T10:00:00.000+00:00"
        content.save(model)
        store.write_meta(store.write(table, networks, "networks", derived=True), "networks", hardware_id=hardware_id)

    written(20, table)
    folder, _ = sent("first")
    written(21, pd.concat([table.assign(n=table["n"] + 1), table.tail(1).assign(batch_size=999)]))
    assert sent("second") == (folder, 3), "the table with its provenance, and the model"
    assert (folder / "networks/mine/networks.parquet").read_bytes() == networks.read_bytes()
    assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    assert sent("first") == (folder, 0), "an older bundle changes nothing"
    written(21, table.head(3))
    assert sent("others")[0] == folder.with_name("box-v2"), "what lacks cases of the one before is no later one of it"


def test_what_is_measured_now_is_packed_and_merged(home, quiet, networks_here, monkeypatch):
    monkeypatch.setattr(visitor, "Service", InProcess)
    profile_run.measure(ProfileParams(workload="W6", device="cpu", data_source="synthetic", iters=2, warmup_iters=1, warmup_s=0,
                                      budget_s=0))
    sweep.measure_sweep(SweepParams(op="activation", device="cpu", count=1, budget_s=0, rounds=2, visit_ms=2, patience_s=0))
    table, facts = campaign.measure([(Case("simple_cnn", "infer", 1, "3x28x28"), "default")], rounds=1, case_s=0.05)
    campaign.write(table, paths.NETWORKS / "mine/networks.parquet", **facts, rounds=1, cases=1)
    output_of("bundle", "--out", home / "b.zip")
    output_of("import", "bundle", home / "b.zip")
    (folder,) = paths.IMPORTED.iterdir()
    assert {path.relative_to(folder).parts[0] for path in folder.glob("**/*.meta.json")} == {
        "networks", "profiles", "runs", "sweeps"}


def test_a_bundle_has_the_name_of_the_machine_that_measured(finished, home, monkeypatch):
    monkeypatch.setattr(machine, "name", lambda: "node-that-collects")
    monkeypatch.chdir(home)
    output_of("bundle")
    assert (home / f"{REFERENCE.name}.zip").is_file()
    swept(machine="gpu-box")
    words = f"several machines measured, and this one did not: {REFERENCE.name}, gpu-box"
    assert words in refusal("bundle", "--out", "b.zip")
