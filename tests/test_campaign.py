"""Files of jobs: what is refused, and a real run of two small workloads that survives the death of a worker."""

import os
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

from lib import store
from lib.measure import load, machine, worker
from lib.schedule import durations
from lib.schedule.problem import Jobs
from lib.schedule.runtime import jobs_file, local_site, run_record, tasks
from lib.schedule.runtime.worker_process import Job, Stopped
from lib.schedule.runtime.workers import WARM_UP, ProcessWorker, Site, Slot
from lib.work import weights
from tests import killed, notebook, output_of, refusal, refused

pytestmark = pytest.mark.slow


def write(path, text):
    path.write_text(text)
    return path


def read(folder, text):
    """Return what a file of jobs with this text says, in this folder."""
    return jobs_file.read(write(folder / "jobs.csv", text), folder / "out")


def in_one_process(jobs, count=0, slot=None):
    """Return one slot of this machine, whose worker has no process of its own."""
    return Site((slot or Slot("cpu", warm_up=WARM_UP),), killed.Inline, np.ones((len(jobs), 1), bool))


@pytest.mark.parametrize("text, word", [
    ("job_id,workload_id,steps\na,W99,5\n", "no workload 'W99'"),
    ("job_id,workload_id,steps\na,W1,\n", "steps of 'a' is empty"),
    ("job_id,workload_id,notebook,steps\na,W1,n.ipynb,1\n", "one of them"), ("job_id,workload_id,steps\n", "no row"),
    ("job_id,workload_id,steps,colour\na,W1,1,red\n", "unknown"), ("job_id,workload_id,steps\nNA,W1,5\n", "empty cell"),
    ("job_id,workload_id,steps\na,W1,1.5\n", "steps of 'a' is '1.5': it is a whole number"),
    ("job_id,workload_id,steps,memory_mb\na,W1,5,inf\n", "memory_mb of 'a' is 'inf': it is a finite number, 0 or more"),
    ("job_id,notebook,parameters\nj,notebooks/03_sweep.ipynb,[1]\n", "parameters of 'j'"),
    ("job_id,notebook,parameters\nj,notebooks/03_sweep.ipynb,{\"\"budget_s\"\": \"\"x\"\"}\n", "parameters of 'j'")])
def test_bad_files_of_jobs_are_refused(tmp_path, text, word):
    with refused(word):
        read(tmp_path, text)


@pytest.mark.skipif(len(worker.own_cores()) < 2, reason="a gang needs two slots")
def test_a_gang_trains_as_one_device_does(home, tmp_path):
    """The batch is shared, so weights are those of one device; a number of devices that is left open is chosen."""
    text = "job_id,workload_id,steps,devices,most_devices\ntwo,W1,5,2,2\none,W1,5,1,1\nopen,W1,5,1,2\n"
    path, out = write(tmp_path / "jobs.csv", text), tmp_path / "out"
    prepared = jobs_file.prepare(path, out, count=2)
    assert [spec.devices for spec in prepared.specs][:2] == [2, 1] and prepared.specs[2].devices in (1, 2)
    record = jobs_file.run(prepared, out)
    assert record.ends["status"].tolist() == ["done"] * 3, record.ends["reason"].tolist()
    assert len(record.jobs()) == 3 and record.schedule.query("job_id == 'two'")["device"].nunique() == 2
    two, one = (weights.load(out / "weights" / name / "weights.pt") for name in ("two", "one"))
    assert all(torch.allclose(two[name], one[name], atol=1e-4) for name in one)


NOTEBOOKS = "job_id,notebook\n"


def test_parameters_reach_the_notebook_and_a_workload_has_none(tmp_path):
    (tmp_path / "n.ipynb").touch()
    table = pd.DataFrame({"job_id": ["own", "other"], "notebook": ["notebooks/03_sweep.ipynb", "n.ipynb"],
                          "parameters": ['{"budget_s": 12, "op": "conv2d"}', '{"anything": [1, {"a": null}]}']})
    specs, _ = read(tmp_path, table.to_csv(index=False))
    assert [spec.arguments["parameters"] for spec in specs] == [{"budget_s": 12, "op": "conv2d"},
                                                               {"anything": [1, {"a": None}]}]
    with refused("job 'a' has parameters; only a notebook takes them"):
        read(tmp_path, "job_id,workload_id,steps,parameters\na,W1,5,{}\n")


def test_a_notebook_has_a_predicted_time_by_its_budget_its_earlier_runs_or_a_guess(tmp_path):
    known, sweep = durations.Durations(tmp_path / "durations.csv"), "notebooks/03_sweep.ipynb"
    assert known.predicted(sweep, {"budget_s": 100}, "cpu") == (100 + durations.BESIDE_S, "its budget of 100 s")
    assert known.predicted(sweep, {}, "cpu").seconds == 30 + durations.BESIDE_S  # its own default
    rows = pd.DataFrame({"run": "r", "job_id": ["a", "b", "c"], "notebook": "n.ipynb", "device_type": "cpu",
                         "seconds": [3.0, 5.0, 40.0]})
    known.learn(rows)
    known.learn(rows.assign(seconds=99.0))  # a run that is resumed is not counted again
    assert known.predicted("n.ipynb", {}, "cuda:0").seconds == durations.GUESS_S
    assert known.predicted("n.ipynb", {}, "cpu") == (5.0, "the median of 3 earlier runs")


def test_a_notebook_gets_the_device_it_was_placed_on_and_its_time_is_learned(home, tmp_path):
    """Unless it is given one, or has no such parameter; the next run of it is predicted by this one."""
    for name, cell in (("has", 'device: str = "auto"\nx: int = 1'), ("none", "x: int = 1")):
        notebook(tmp_path / f"{name}.ipynb", cell, "print(globals().get('device'), x)")
    jobs = pd.DataFrame({"job_id": ["placed", "own", "without"], "notebook": ["has.ipynb", "has.ipynb", "none.ipynb"],
                         "parameters": ["", '{"device": "cpu:7", "x": 2}', '{"x": 3}']})
    path, out = write(tmp_path / "jobs.csv", jobs.to_csv(index=False)), tmp_path / "out"
    prepared = jobs_file.prepare(path, out, site_of=in_one_process)
    assert prepared.predicted_s.tolist() == [[60.0]] * 3 and "is a guess" in prepared.notes[0]
    record = jobs_file.run(prepared, out)
    assert set(record.ends["status"]) == {"done"}, record.ends["reason"].tolist()
    printed = {name: nbformat.read(out / f"notebooks/{name}.ipynb", 4).cells[-1].outputs[0].text for name in jobs["job_id"]}
    assert printed == {"placed": "cpu 1\n", "own": "cpu:7 2\n", "without": "None 3\n"}
    assert len(pd.read_csv(home / "data/schedule/durations.csv")) == len(jobs)
    again = jobs_file.prepare(path, tmp_path / "again", site_of=in_one_process)
    assert not again.notes and (again.predicted_s < 60).all() and again.predicted_s[0] == again.predicted_s[1]


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.cuda)])
def test_a_notebook_on_a_slot_is_of_the_leaders_machine(home, tmp_path, which):
    slot = [slot for slot in local_site.slots_here() if slot.gpus][which]
    notebook(tmp_path / "n.ipynb", 'device: str = "auto"',
             "from lib.measure import machine\nprint(device, machine.ids()['hardware_id'])")
    path, out = write(tmp_path / "jobs.csv", "job_id,notebook\na,n.ipynb\n"), tmp_path / "out"
    site = Site((slot,), ProcessWorker, np.ones((1, 1), bool))
    record = jobs_file.run(jobs_file.prepare(path, out, site_of=lambda *_: site), out)
    assert set(record.ends["status"]) == {"done"}, record.ends["reason"].tolist()
    printed = nbformat.read(out / "notebooks/a.ipynb", 4).cells[-1].outputs[0].text
    assert printed.split() == ["cuda:0" if which else "cpu", machine.ids()["hardware_id"]]


def test_whatever_a_job_is_called_it_stays_in_its_folder(tmp_path):
    """The executed notebook has a plain name of its own, also where file systems do not tell cases apart."""
    names = ["a", "A", "../../x", "/etc/x", "a\\b", "..", ".hidden", "x" * 300, "x" * 299 + "y", "é", "-rf", "a b", "a\u202eb"]
    (tmp_path / "n.ipynb").touch()
    specs, _ = read(tmp_path, NOTEBOOKS + "".join(f"{name},n.ipynb\n" for name in names if name.isprintable()))
    targets = [Path(spec.arguments["out"]) for spec in specs]
    assert {target.resolve().parent for target in targets} == {tmp_path / "out/notebooks"}
    assert len({target.name.lower() for target in targets}) == len(specs) == len(names) - 1
    assert all(len(target.name) < 100 and not target.name.startswith((".", "-")) for target in targets)
    assert targets[0].name == "a.ipynb"


def test_a_notebook_lies_beside_its_jobs_or_in_the_repository(tmp_path):
    folder = tmp_path / "jobs"
    (folder / "sub").mkdir(parents=True)
    for name in ("jobs/own.ipynb", "jobs/sub/deep.ipynb", "jobs/no.txt", "outside.ipynb"):
        (tmp_path / name).touch()
    (folder / "linked.ipynb").symlink_to(tmp_path / "outside.ipynb")
    texts = ["own.ipynb", "sub/../sub/deep.ipynb", "notebooks/01_machine.ipynb", f"{folder}/own.ipynb"]
    specs, jobs = read(folder, NOTEBOOKS + "".join(f"j{n},{text}\n" for n, text in enumerate(texts)))
    assert [spec.arguments["path"] for spec in specs] == [f"{folder}/own.ipynb", f"{folder}/sub/deep.ipynb",
                                                          "notebooks/01_machine.ipynb", f"{folder}/own.ipynb"]
    assert jobs.job_class.tolist() == [0, 1, 2, 0]  # alike is what is the same file
    for text in ("none.ipynb", "no.txt", "../outside.ipynb", str(tmp_path / "outside.ipynb"), "linked.ipynb", "sub"):
        with refused("the notebook of job 'j', .* is no .ipynb file in"):
            read(folder, f"{NOTEBOOKS}j,{text}\n")


def test_a_run_has_a_folder_of_its_own(tmp_path):
    jobs, own = tmp_path / "jobs.csv", tmp_path / "own"
    assert jobs_file.folder_of(jobs, own) == own and not own.exists() and jobs_file.folder_of(jobs).name == "jobs"
    for folder, told in ((tmp_path / "none/new", f"there is no folder {tmp_path}/none"),
                         (write(tmp_path / "file", ""), "Not a directory")):
        with refused(told):
            jobs_file.folder_of(jobs, folder)
    for name in ("probe-cpu-1/run.sqlite", "jobs.csv", ".run.sqlite.lock"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).touch()
        assert jobs_file.folder_of(jobs, own) == own
    (own / "schedule.csv").touch()
    with refused("own holds other things than a run, such as schedule.csv"):
        jobs_file.folder_of(jobs, own)
    (own / "run.sqlite").touch()
    assert jobs_file.folder_of(jobs, own) == own
    refusal("run-jobs", jobs, "--out", tmp_path)


@pytest.mark.parametrize("slot", [Slot("cpu"), Slot("cpu[0-1]", (0, 1))])
def test_a_failed_probe_says_why_and_is_tried_by_the_next_call(tmp_path, monkeypatch, slot):
    path = write(tmp_path / "jobs.csv", "job_id,workload_id,steps\na,W1,50\nb,W2,10\n")

    def probe(job, workload_id, seconds):
        if workload_id == "W2" and not (tmp_path / "space").exists():
            raise OSError(28, "No space left on device")
        ran.append(workload_id)
        return {"step_s": 0.1, "setup_s": 1.0}

    ran = []
    monkeypatch.setattr(tasks, "probe", probe)
    with refused("no slot can run job 'b': W2 could not be probed on cpu: .*No space left on device"):
        jobs_file.prepare(path, tmp_path / "out", site_of=partial(in_one_process, slot=slot))
    (tmp_path / "space").touch()
    prepared = jobs_file.prepare(path, tmp_path / "out", site_of=partial(in_one_process, slot=slot))
    assert ran == ["W1", "W2"] and prepared.predicted_s.tolist() == [[pytest.approx(6.0)], [pytest.approx(2.0)]]


def test_what_runs_at_once_fits_together(with_card, monkeypatch):
    """Slots share memory and cores: what one slot takes is its share, and fewer slots have larger ones; a GPU has its own."""
    monkeypatch.setattr(local_site, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(machine, "memory_mb", {"cpu": 8000.0, "cuda:0": 16000.0}.__getitem__)
    jobs = replace(Jobs.plain(4), memory_mb=np.array([2000.0, 2001.0, 16000.0, 0.0]), cpu_cores=np.array([1.0, 0.0, 4.0, 2.0]))
    assert local_site.local_site(jobs).able.tolist() == [[True, True], [False, True], [False, True], [False, True]]
    site = local_site.local_site(jobs, 2)
    assert site.able.tolist() == [[True, True], [True, True], [False, True], [True, True]]
    assert [slot.cores for slot in site.slots] == [(0, 1), (2, 3), ()]
    fleet = local_site.fleet_of(site.slots)
    assert fleet.host_cores == 4 and fleet.cpu_cores[0] == 2, "jobs on the GPU draw from the cores of the host"
    for slots in (site.slots[:2], (Slot("cpu[node/0]"), Slot("cuda:A[node/0]"))):  # nobody else draws; of which host?
        assert local_site.fleet_of(slots).host_cores == np.inf
    with refused(r"cpu with 2,000 MB and 1 cores, cuda:0 with 16,000 MB and 4 cores \(.*fewer --slots"):
        local_site.local_site(replace(jobs, memory_mb=np.full(4, 16001.0)))


@pytest.mark.parametrize("cores, count, slots, width", [
    (16, 0, 16, 1), (20, 0, 10, 2), (128, 128, 128, 1)])
def test_a_large_host_has_few_slots_unless_they_are_asked_for(monkeypatch, cores, count, slots, width):
    monkeypatch.setattr(local_site, "allowed_cores", lambda: list(range(cores)))
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    monkeypatch.setattr(load, "free_cores", lambda: cores)
    assert [len(slot.cores) for slot in local_site.slots_here(count)] == [width] * slots


class Mortal(ProcessWorker):
    """A worker that is killed as soon as it has its first job, ``a``."""

    def send(self, *message):
        super().send(*message)
        if message[:2] == ("run", "a#1"):
            self.process._process.kill()


def test_real_workloads_survive_the_death_of_a_worker(tmp_path):
    text = "job_id,workload_id,steps,deadline_s\na,W1,5,0.01\nb,W1,4,1000\n"
    path, out = write(tmp_path / "jobs.csv", text), tmp_path / "out"
    prepared = jobs_file.prepare(path, out, site_of=in_one_process)
    assert (prepared.predicted_s > 0).all()
    ran = jobs_file.run(replace(prepared, spawn=Mortal), out)
    assert sum("killed (signal 9)" in note for note in ran.facts["notes"]) == 1
    assert ran.schedule[["job_id", "status"]].to_numpy().tolist() == [["a", "retried"], ["a", "done"], ["b", "done"]]
    for row in ran.ends.itertuples():
        assert row.status == "done" and row.result["steps"] == {"a": 5, "b": 4}[row.job_id]
        assert weights.load(out / "weights" / row.job_id / "weights.pt")
    assert len(store.read(out / "schedule.csv", "schedule")) == 3
    assert ran.facts["in_time"] == {"a": 0.0, "b": 1.0} and "b: said to keep its deadline with 100%" in run_record.text(ran)
    assert (out / "trace.json").is_file() and "done" in run_record.text(ran) and "took s" in run_record.text(ran)
    again = jobs_file.run(replace(prepared, name="fastest"), out)
    assert again.facts == ran.facts and again.job_classes == ran.job_classes and again.ends.equals(ran.ends)
    assert again.earlier and run_record.text(again).startswith(
        "Nothing ran now: all jobs ended in an earlier run, recorded "
        f"{ran.facts['written_utc'][:16].replace('T', ' ')} UTC, by the policy hybrid. ")
    assert again.facts == run_record.read(out).facts and not run_record.text(ran).startswith("Nothing")
    (out / "ran.json").write_text("{}")
    with refused(r"ran\.json"):
        jobs_file.run(prepared, out)
    assert (out / "ran.json").read_text() == "{}", "a record that cannot be read is not written over"


def test_a_record_that_is_none_is_refused(tmp_path):
    _, record = run_record.of_reference()
    run_record.write(record, tmp_path)
    content = store.read_json(tmp_path / "ran.json")
    for wrong in ([], {}, {**content, "ends": [{}]}, {**content, "facts": {}}, {**content, "more": 1}):
        store.write_json(wrong, tmp_path / "ran.json")
        with refused(r"ran\.json"):
            run_record.read(tmp_path)


class Cut(Job):
    """A job that is told to stop before its batch of that number."""

    def __init__(self, batch):
        super().__init__("cpu[0]", 1)
        self._left = batch

    def check(self):
        self._left -= 1
        if self._left < 0:
            raise Stopped


def test_a_training_job_that_was_cut_short_goes_on_and_ends_with_the_same_weights(tmp_path, monkeypatch):
    """Bit for bit, wherever it was cut; a state that is damaged is refused; in the end the weights alone are there."""
    monkeypatch.setattr(tasks, "_KEEP_S", 0.0)
    monkeypatch.setattr(tasks, "_KEEP_SHARE", 0.0)

    def trained(name, job=None):
        return tasks.workload(job or Job("cpu[0]", 1), "W6", 5, str(tmp_path / name))

    whole = trained("whole")
    for batch in (3, 1):
        with pytest.raises(Stopped):
            trained("cut", Cut(batch))
    rest = trained("cut")
    assert whole["steps"] == 5 and whole["trained"] == 5 and rest["steps"] == 5 and rest["trained"] == 1
    one, other = (weights.load(tmp_path / name / tasks.WEIGHTS) for name in ("whole", "cut"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert os.listdir(tmp_path / "cut") == [tasks.WEIGHTS]
    write(tmp_path / "cut/state.pt", "damaged")
    with refused(r"state\.pt holds no tensors, or is damaged"):
        trained("cut")


def test_every_sample_is_seen_once_an_epoch_in_another_order_each_and_from_any_batch_on():
    batches = list(islice(tasks._order(10, 3, 0), 9))
    epochs = [sum(batches[at:at + 3], []) for at in (0, 3, 6)]
    assert all(len(set(epoch)) == 9 for epoch in epochs) and len(set(map(tuple, epochs))) == 3
    assert all(list(islice(tasks._order(10, 3, first), 2)) == batches[first:first + 2] for first in range(8))


def test_the_command_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times = write(tmp_path / "t.csv", "job_id,cpu\na,4\nb,4\n")
    write(tmp_path / "d.csv", "device,type,count\nhost,cpu,1\n")
    schedule = "schedule --times t.csv --devices d.csv --policy fcfs".split()
    for option in ("--out", "--trace"):
        assert "is not overwritten" in refusal(*schedule, option, "t.csv")
        assert "No space left on device" in refusal(*schedule, option, "/dev/full")
    assert times.read_text() == "job_id,cpu\na,4\nb,4\n"
    output_of(*schedule, "--out", "o.csv", "--trace", "new.json")
    assert (tmp_path / "o.csv").read_text().startswith("job_id,device") and (tmp_path / "new.json").is_file()
