"""What was measured before: machines of the same hardware keep their runs apart."""

import shutil

import pytest

from lib import files, paths, store
from lib.config.notebooks import MachineParams, SweepParams
from lib.measure import archive, ceilings
from lib.measure.operators import isolated, sweep
from lib.measure.training import profiled
from lib.predict import registry
from lib.predict.advice import advise_operator
from lib.predict.evaluation import evaluate
from lib.schedule.run import record as run_record
from tests import refused

COMMITTED = next(path for path in sorted(paths.REFERENCE.glob("*")) if (path / "runs").is_dir())


def changed(path, kind, **columns):
    """Write a table again with other columns."""
    table = store.read(path, kind)
    path.unlink()
    store.write(table.assign(**columns), path, kind)


@pytest.mark.slow
def test_runs_of_one_id_and_hardware_on_two_machines_are_two_runs(home):
    for machine in ("one", "two"):
        for path in (*COMMITTED.glob("runs/*W[12]_*"), *COMMITTED.glob("profiles/*W[12]_*")):
            shutil.copy(path, files.folder(paths.IMPORTED / machine / path.parent.name))
    assert archive.runs("measure")["run_id"].tolist() == archive.runs("replay")["run_id"].tolist()[:2], "a run counts once"
    for path in (paths.IMPORTED / "two/runs").glob("*.csv"):
        changed(path, "runs", timestamp=store.utc_now())
    changed(next((paths.IMPORTED / "two/profiles").glob("*_W1_*_train.csv")), "profile", forward_time_ms=9999.0)
    runs = archive.runs("measure")
    names = runs["run_id"].tolist()[:2]
    assert runs["run_id"].tolist() == [*names, *(f"two/{name}" for name in names)]
    rows = archive.rows(runs, "measure")
    train = rows[(rows["task_type"] == "train") & rows["workload_id"].eq("W1")]
    forward = train.groupby("run_id")["forward_time_ms"].median()
    assert len(forward) == 2
    assert ((forward == 9999.0) == forward.index.str.startswith("two/")).all()


@pytest.mark.slow
def test_a_replay_is_of_the_run_that_was_asked_for():
    with refused("has no run of W1 on cpu, batch size 999, fp32; it has: W1 on cpu, batch size 64, fp32"):
        profiled.replay("W1", "cpu", batch_size=999)
    assert profiled.replay("W1", "cpu", batch_size=64).run["batch_size"] == 64


def test_a_refusal_names_the_folders_that_were_looked_through():
    for reference, where in (("", paths.REFERENCE), ("box", f"{paths.REFERENCE} or {paths.IMPORTED}")):
        with refused(f"with dreams in {where}; there are: none"):
            archive.machine_with("dreams/*", "dreams", reference)


def swept(name, rows, device, **changed):
    """Import a machine that swept some rows of the committed one, on this device."""
    folder, sweep = paths.IMPORTED / name, paths.IMPORTED / name / "sweeps/s"
    sweep.mkdir(parents=True)
    store.write(rows.assign(device=device, hardware_id="feedbeef", **changed), sweep / "sweep.parquet", "sweep")
    hardware = {"memory_gib": 16, "gpus": [{"name": "Tesla T4"}]}
    store.write_meta(sweep / "sweep.parquet", "sweep", started_utc=store.utc_now(), devices={
        device: {"hardware": hardware, "hardware_id": "feedbeef"}})
    for kind, stem in (("ceilings", "ceilings_cpu"), ("overheads", "overheads_cpu")):
        table = store.read(COMMITTED / f"ceilings/{stem}.csv", kind).assign(hardware_id="feedbeef")
        store.write(table, folder / f"ceilings/{stem}.csv", kind)
        shutil.copy(COMMITTED / f"ceilings/{stem}.meta.json", folder / "ceilings")
    return folder


@pytest.fixture(scope="module")
def convolutions():
    table = store.read(COMMITTED / "sweeps/conv2d_kernel_cold/sweep.parquet", "sweep")
    whole = (table["pass"] == "forward") & (table["status"] == "ok") & (table["verdict"] == "stable") & (table["groups"] == 1)
    return table[whole & (table["kernel_h"] > 1)].head(90).reset_index(drop=True)


@pytest.mark.slow
def test_an_imported_machine_is_a_reference_by_its_name_and_only_then(home):
    for name in ("runs", "profiles", "ceilings", "points", "sweeps", "schedule"):
        shutil.copytree(COMMITTED / name, paths.IMPORTED / "box" / name)
    shutil.rmtree(paths.IMPORTED / "box/sweeps/all_kernel_warm")
    assert "on box." in ceilings.ceilings(MachineParams(source="replay", reference="box")).note
    cold = SweepParams(source="replay", reference="box", cache="cold")
    assert sweep.sweep(cold).folder == paths.IMPORTED / "box/sweeps/conv2d_more_kernel_cold"
    assert isolated.stored_points("cpu", "fp32", COMMITTED.name[-8:], "box")[1].startswith("Points of")
    assert run_record.of_reference("box")[0] == "box"
    assert archive.folders("replay") == [COMMITTED], "a replay that names none is the same everywhere"
    with refused("no warm kernel sweep of conv2d in fp32 on auto; it has: .*conv2d fp32 on cpu"):
        sweep.sweep(SweepParams(source="replay", reference="box"))


@pytest.mark.parametrize("name", ["nope", ".hidden"])
def test_a_machine_that_is_none_is_one_line(home, name):
    (paths.IMPORTED / "box").mkdir(parents=True)
    for call in (lambda: archive.machine_folder(name), lambda: registry.for_devices([f"cpu@{name}"], "fp32"),
                 lambda: evaluate.own_machine(name)):
        with refused(f"{name}.*box"):
            call()


def test_what_a_machine_lacks_another_one_stands_in_for_and_the_note_says_so(home):
    (paths.IMPORTED / "box").mkdir(parents=True)
    name, note = archive.stand_in("runs/*.csv", "runs", "box")
    assert (name, note) == (COMMITTED.name, f"box has no runs: that of {COMMITTED.name} stands in.")


@pytest.mark.slow
def test_an_imported_cpu_is_trained_on_its_own_sweeps_and_advice_knows_it(home, convolutions):
    folder = swept("box", convolutions, "cpu", latency_ms=convolutions["latency_ms"] * 7)
    with refused("no fp32 model of box; .* has: none; train .* models --train box"):
        registry.for_devices(["box"], "fp32")
    scores, reasons = evaluate.own_machine("box")
    assert set(scores["device"]) == {"cpu"} and reasons == []
    assert [path.name for path in (folder / "trained").iterdir()] == ["cpu-box-feedbeef_fp32.json.gz"]
    (predictor,), (committed,) = registry.for_devices(["box"], "fp32"), registry.for_devices([COMMITTED.name], "fp32")
    assert predictor.device == "cpu@box" and predictor.origin == "" and predictor.memory_mb == pytest.approx(24 * 2**30 / 1e6)
    ratio = predictor.model.predict(convolutions)["predicted_ms"] / committed.model.predict(convolutions)["predicted_ms"]
    assert 5 < ratio.median() < 9
    assert predictor.model.parts["gemm forward"].origin == committed.model.device, "what it did not sweep, and whose it is"
    assert predictor.measured_times(), "its own operators are looked up"
    assert registry.for_devices([], "fp32")[0].device == "cpu", "unasked, other machines are not there"
    shape = "batch=2 in_channels=8 out_channels=8 height=16 width=16 kernel=3 stride=1 padding=1".split()
    answer = advise_operator.advise(advise_operator.config("conv2d", shape), ["box", COMMITTED.name])
    assert answer["device"].tolist() == [f"cpu@{COMMITTED.name}", "cpu@box"]


def test_too_few_rows_to_train_on_are_one_line(home, convolutions):
    swept("box", convolutions.head(20), "cpu")
    with refused(r"no sweep of 40 usable rows or more \(20 of 20 rows are usable\); measure one"):
        evaluate.own_machine("box")


def test_the_newest_file_of_a_device_is_not_that_of_one_whose_number_begins_alike(tmp_path):
    for second, stem in enumerate(("ceilings_cuda-1", "ceilings_cuda-1-v2", "ceilings_cuda-10")):
        store.write_json({"started_utc": f"2026-01-01T00:00:0{second}"}, tmp_path / f"{stem}.meta.json")
    assert archive.newest(tmp_path, "ceilings_cuda-1")[1].name == "ceilings_cuda-1-v2.csv"
