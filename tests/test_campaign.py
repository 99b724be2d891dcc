"""Files of jobs: what is refused, what each should take, and real runs of small workloads."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from lib import store
from lib.measure import machine, worker
from lib.schedule import expected
from lib.schedule.problem import Jobs
from lib.schedule.run import jobs, jobs_file, slots, tasks
from lib.schedule.run import record as run_record
from lib.schedule.run.processes import ProcessWorkers
from lib.schedule.run.slots import Slot
from lib.work import weights
from tests import nightly, notebook, refusal, refused
from tests.killed import InlineWorkers, marked_jobs

pytestmark = pytest.mark.slow
NOTEBOOKS = "job_id,notebook\n"
SWEEP = "notebooks/03_sweep.ipynb"


def read(folder, text):
    """Return what a file of jobs with this text says, in this folder."""
    (folder / "jobs.csv").write_text(text)
    return jobs_file.read(folder / "jobs.csv", folder / "out")


def prepare(folder, text, workers=None, out="out"):
    """Return prepared jobs; without workers they run in this process."""
    rows, table = read(folder, text)
    workers = workers or InlineWorkers([Slot("cpu", core_count=1)])
    return jobs.prepare(rows, table, folder / out, "hybrid", "makespan", workers)


@pytest.mark.parametrize("text, word", [
    ("job_id,workload_id,steps\na,W99,5\n", "no workload 'W99'"),
    ("job_id,workload_id,steps\na,W1,\n", "steps of 'a' is empty"),
    ("job_id,workload_id,notebook,steps\na,W1,n.ipynb,1\n", "one of them"), ("job_id,workload_id,steps\n", "no row"),
    *((f"job_id,workload_id,steps,{name}\na,W1,1,1\n", f"unknown.*{name}")
      for name in ("colour", "user", "weight", "memory_high_mb", "most_devices")),
    ("job_id,workload_id,steps,arrival_s\na,W1,5,-1\n", "arrival_s of 'a' is '-1'"),
    (f"job_id,notebook,devices\na,{SWEEP},2\n", "a notebook runs on one"),
    ("job_id,workload_id,steps,parameters\na,W1,5,{}\n", "job 'a' has parameters; only a notebook takes them"),
    (f"job_id,notebook,parameters\nj,{SWEEP},[1]\n", "parameters of 'j'"),
    (f"job_id,notebook,parameters\nj,{SWEEP},{{\"\"budget_s\"\": \"\"x\"\"}}\n", "parameters of 'j'")])
def test_bad_files_of_jobs_are_refused(tmp_path, text, word):
    with refused(word):
        read(tmp_path, text)


def test_seconds_are_expected_by_the_first_source_that_knows_them(home):
    assert expected.budget(SWEEP, {"budget_s": 100}) == (100 + expected.BESIDE_S, "its budget of 100 s", 0.15)
    assert expected.budget(SWEEP, {}).seconds == 30 + expected.BESIDE_S  # its own default
    assert expected.budget("n.ipynb", {}) is None and expected.budget(SWEEP, {"source": "replay"}) is None
    rows = pd.DataFrame({"run": "r", "job_id": ["a", "b", "c"], "notebook": "n.ipynb", "device_type": "cpu",
                         "seconds": [3.0, 5.0, 40.0]})
    expected.keep_notebooks(rows)
    expected.keep_notebooks(rows.assign(seconds=99.0))  # a run that is resumed is not counted again
    earlier = expected.earlier_notebooks()
    sources = [lambda device_type: None, earlier.of("n.ipynb"), lambda device_type: expected.Expected(1.0, "a model")]
    assert expected.expected_s("cpu", sources)[:2] == (5.0, "the median of 3 earlier runs")
    assert expected.expected_s("cuda:0", sources).source == "a model"
    guess = expected.expected_s("cuda:0", sources[:2])
    assert guess.seconds == expected.GUESS_S and "guess" in guess.source
    for _ in range(20):
        earlier.add("n.ipynb", "cpu", 7.0)
    assert expected.expected_s("cpu", sources) == (7.0, "the median of 9 earlier runs", 0.05)


def test_a_notebook_gets_the_device_it_was_placed_on_and_its_time_is_learned(home, tmp_path):
    """Unless it is given one, or has no such parameter; the next run of it is predicted by this one."""
    for name, cell in (("has", 'device: str = "auto"\nx: int = 1'), ("none", "x: int = 1")):
        notebook(tmp_path / f"{name}.ipynb", cell, "print(globals().get('device'), x)")
    table = pd.DataFrame({"job_id": ["placed", "own", "without"], "notebook": ["has.ipynb", "has.ipynb", "none.ipynb"],
                          "parameters": ["", '{"device": "cpu:7", "x": 2}', '{"x": 3}']})
    text, out = table.to_csv(index=False), tmp_path / "out"
    prepared = prepare(tmp_path, text)
    assert prepared.problem.predicted_s.tolist() == [[60.0]] * 3 and "is a guess" in prepared.notes[0]
    record = jobs.run(prepared, out)
    assert set(record.ends["status"]) == {"done"}, record.ends["reason"].tolist()
    printed = {name: nbformat.read(out / f"notebooks/{name}.ipynb", 4).cells[-1].outputs[0].text for name in table["job_id"]}
    assert printed == {"placed": "cpu 1\n", "own": "cpu:7 2\n", "without": "None 3\n"}
    assert len(pd.read_csv(home / "data/schedule/durations.csv")) == len(table)
    again = prepare(tmp_path, text, out="again")
    seconds = again.problem.predicted_s
    assert not again.notes and (seconds < 60).all() and seconds[0] == seconds[1]


def test_whatever_a_job_is_called_it_stays_in_its_folder(tmp_path):
    """The executed notebook has a plain name of its own, also where file systems do not tell cases apart."""
    names = ["a", "A", "../../x", "/etc/x", "..", "x" * 300, "x" * 299 + "y", "-rf"]
    (tmp_path / "n.ipynb").touch()
    rows, _ = read(tmp_path, NOTEBOOKS + "".join(f"{name},n.ipynb\n" for name in names))
    targets = [Path(row.arguments["out"]) for row in rows]
    assert {target.resolve().parent for target in targets} == {tmp_path / "out/notebooks"}
    assert len({target.name.lower() for target in targets}) == len(rows) == len(names)
    assert all(len(target.name) < 100 and not target.name.startswith((".", "-")) for target in targets)
    assert targets[0].name == "a.ipynb"


def test_a_notebook_lies_beside_its_jobs_or_in_the_repository(tmp_path):
    folder = tmp_path / "jobs"
    (folder / "sub").mkdir(parents=True)
    for name in ("jobs/own.ipynb", "jobs/sub/deep.ipynb", "jobs/no.txt", "outside.ipynb"):
        (tmp_path / name).touch()
    (folder / "linked.ipynb").symlink_to(tmp_path / "outside.ipynb")
    texts = ["own.ipynb", "sub/../sub/deep.ipynb", "notebooks/01_machine.ipynb", f"{folder}/own.ipynb"]
    rows, table = read(folder, NOTEBOOKS + "".join(f"j{n},{text}\n" for n, text in enumerate(texts)))
    assert [row.arguments["path"] for row in rows] == [f"{folder}/own.ipynb", f"{folder}/sub/deep.ipynb",
                                                       "notebooks/01_machine.ipynb", f"{folder}/own.ipynb"]
    assert table.job_class.tolist() == [0, 1, 2, 0]  # alike is what is the same file
    for text in ("none.ipynb", "no.txt", "../outside.ipynb", str(tmp_path / "outside.ipynb"), "linked.ipynb", "sub"):
        with refused("the notebook of job 'j', .* is no .ipynb file in"):
            read(folder, f"{NOTEBOOKS}j,{text}\n")


def test_a_run_has_a_folder_of_its_own(tmp_path):
    path, own = tmp_path / "jobs.csv", tmp_path / "own"
    assert jobs_file.folder_of(path, own) == own and not own.exists() and jobs_file.folder_of(path).name == "jobs"
    path.write_text("job_id,workload_id,steps\na,W1,1\n")
    for folder, told in ((tmp_path / "none/new", f"there is no folder {tmp_path}/none"), (path, "Not a directory")):
        with refused(told):
            jobs_file.folder_of(path, folder)
    own.mkdir()
    for name in ("probes.json", "jobs.csv", ".queue.sqlite.lock", "queue.sqlite"):
        (own / name).touch()
        assert jobs_file.folder_of(path, own) == own
    (own / "ran.json").touch()
    assert "own holds other things than a run, such as ran.json" in refusal("run-jobs", path, "--output", own)
    (own / "queue.sqlite").write_text("of a run")
    assert jobs_file.folder_of(path, own) == own
    assert "no policy 'fastest'" in refusal("run-jobs", path, "--output", own, "--policy", "fastest")


def test_a_failed_probe_says_why_and_is_tried_by_the_next_call(tmp_path, monkeypatch):
    def probe(workload, seconds, devices, threads):
        if workload == "W2" and not (tmp_path / "space").exists():
            raise OSError(28, "No space left on device")
        ran.append(workload)
        return {"step_s": 0.1, "setup_s": 1.0}

    ran, text = [], "job_id,workload_id,steps\na,W1,50\nb,W2,10\n"
    monkeypatch.setattr(tasks, "probe", probe)
    workers = InlineWorkers([Slot(f"cpu[{number}]", core_count=1) for number in range(3)])
    with refused("no slot can run job 'b': W2 could not be probed on cpu: .*No space left on device"):
        prepare(tmp_path, text, workers)
    (tmp_path / "space").touch()
    prepared = prepare(tmp_path, text, workers)
    assert ran == ["W1", "W1", "W2", "W2", "W2"], "all slots are at work while a workload is probed"
    assert prepared.problem.predicted_s.tolist() == [[pytest.approx(6.0)], [pytest.approx(2.0)]]
    prepare(tmp_path, text, InlineWorkers(workers.slots[:2]))
    assert ran[5:] == ["W1", "W2"], "with fewer slots at work a step takes another time"


def test_what_runs_at_once_fits_together(with_card, monkeypatch):
    """Slots share memory and cores: what one slot takes is its share, and fewer slots have larger ones; a GPU has its own."""
    monkeypatch.setattr(slots, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(machine, "memory_mb", {"cpu": 8000.0, "cuda:0": 16000.0}.__getitem__)
    table = replace(Jobs.plain(4), memory_mb=np.array([2000.0, 2001.0, 16000.0, 0.0]), cpu_cores=np.array([1.0, 0.0, 4.0, 2.0]))
    fleet = slots.fleet_of(slots.slots_here())
    assert slots.check_fits(table, fleet).tolist() == [[True, True], [False, True], [False, True], [False, True]]
    here = slots.slots_here(2)
    fleet = slots.fleet_of(here)
    assert slots.fits(table, fleet).tolist() == [[True, True], [True, True], [False, True], [True, True]]
    assert [slot.cores for slot in here] == [(0, 1), (2, 3), ()]
    assert fleet.host_cores == 4 and fleet.cpu_cores[0] == 2, "jobs on the GPU draw from the cores of the host"
    with refused(r"job '0': it needs 16,001 MB and 1 cores; there are: 2 cpu with 4,000 MB and 2 cores, 1 cuda:0 with "
                 r"16,000 MB \(.*fewer --slots"):
        slots.check_fits(replace(table, memory_mb=np.full(4, 16001.0)), fleet)
    gpus = [{"name": "A"}, {"name": "B"}, {"name": "A"}]
    monkeypatch.setattr(machine, "devices", lambda: ["cpu", "cuda:0", "cuda:1", "cuda:2"])
    monkeypatch.setattr(machine, "hardware", lambda: {"gpus": gpus})
    monkeypatch.setattr(machine, "memory_mb", lambda name: 8000.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,GPU-7")
    of_gpus = slots.slots_here(1)[1:]
    assert [(slot.name, slot.device_type, slot.card) for slot in of_gpus] == [
        ("cuda:0", "cuda:A", "3"), ("cuda:1", "cuda:B", "1"), ("cuda:2", "cuda:A", "GPU-7")]
    assert [slot.device_type for slot in slots.slots_here(1, by_model=False)[1:]] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [slots.default_slots(cores) for cores in (4, 16, 20)] == [4, 16, 10]


class Mortal(ProcessWorkers):
    """Workers one of which is killed as soon as it has the job ``a``."""

    killed = False

    def start(self, attempt, task, arguments, devices):
        super().start(attempt, task, arguments, devices)
        if arguments.get("folder", "").endswith("/a") and not self.killed:
            self.killed = True
            self._processes[devices[0]].service._process.kill()


@pytest.mark.parametrize("gang", ["", nightly("two,W1,5,2,\n")])
def test_real_workloads_survive_the_death_of_a_worker(home, tmp_path, gang):
    """One of them runs on two slots at once."""
    if gang and len(worker.own_cores()) < 2:
        pytest.skip("a job on two slots needs two")
    text = f"job_id,workload_id,steps,devices,deadline_s\na,W1,5,1,0.01\nb,W1,4,1,1000\n{gang}"
    out = tmp_path / "out"
    with closing(Mortal(slots.slots_here(2 if gang else 1))) as workers:
        prepared = prepare(tmp_path, text, workers)
        assert (prepared.problem.predicted_s > 0).all()
        ran = jobs.run(prepared, out)
    assert set(ran.ends["status"]) == {"done"}, ran.ends["reason"].tolist()
    assert sum("killed (signal 9)" in note for note in ran.facts["notes"]) == 1
    stories = ran.schedule.groupby("job_id")["status"].apply(list).to_dict()
    assert stories == {"a": ["retried", "done"], "b": ["done"], **({"two": ["done", "done"]} if gang else {})}
    for row in ran.ends.itertuples():
        assert row.result["steps"] == {"a": 5, "b": 4, "two": 5}[row.job_id]
        assert weights.load(out / "weights" / row.job_id / "weights.pt")
    text = run_record.text(ran)
    assert ran.facts["in_time"] == {"a": 0.0, "b": 1.0} and "b: expected to keep its deadline with 100%" in text
    assert (out / "trace.json").is_file() and "took s" in text and not text.startswith("Nothing")
    again = jobs.run(replace(prepared, policy_name="met"), out)
    assert again.earlier and again.facts == ran.facts == run_record.read(out).facts and again.ends.equals(ran.ends)
    assert run_record.text(again).startswith("Nothing ran now: all jobs ended in an earlier run, recorded ")


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.cuda)])
def test_a_notebook_on_a_slot_is_of_the_leaders_machine(home, tmp_path, which):
    slot = [slot for slot in slots.slots_here() if slot.gpus][which]
    notebook(tmp_path / "n.ipynb", 'device: str = "auto"',
             "from lib.measure import machine\nprint(device, machine.ids()['hardware_id'])")
    out = tmp_path / "out"
    with closing(ProcessWorkers([slot], warm_up="")) as workers:
        record = jobs.run(prepare(tmp_path, "job_id,notebook\na,n.ipynb\n", workers), out)
    assert set(record.ends["status"]) == {"done"}, record.ends["reason"].tolist()
    printed = nbformat.read(out / "notebooks/a.ipynb", 4).cells[-1].outputs[0].text
    assert printed.split() == ["cuda:0" if which else "cpu", machine.ids()["hardware_id"]]


def test_a_record_that_is_none_is_refused(tmp_path):
    _, record = run_record.of_reference()
    run_record.write(record, tmp_path)
    content = store.read_json(tmp_path / "ran.json")
    for wrong in ([], {}, {**content, "ends": [{}]}, {**content, "facts": {}}, {**content, "more": 1}):
        store.write_json(wrong, tmp_path / "ran.json")
        with refused(r"ran\.json"):
            run_record.read(tmp_path)
    with refused(r"ran\.json"):
        jobs.run(marked_jobs(tmp_path), tmp_path)
    assert store.read_json(tmp_path / "ran.json") == wrong and not list(tmp_path.glob("*.done"))
