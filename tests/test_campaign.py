"""Files of jobs: what is refused, and a real run of two small workloads that survives the death of a worker."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from lib import store
from lib.errors import InputError
from lib.schedule import api
from lib.schedule.runtime import jobs_file, local_site, run_record, tasks
from lib.schedule.runtime.worker_process import Job
from lib.schedule.runtime.workers import ProcessWorker, Slot


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("text, word", [
    ("job_id,workload_id,steps\na,W1,5\na,W2,5\n", "twice"), ("job_id,workload_id,steps\na,W99,5\n", "no workload 'W99'"),
    ("job_id,workload_id,steps\na,W1,0\n", "steps"), ("job_id,workload_id,steps\na,W1,\n", "steps"),
    ("job_id,steps\na,1\n", "one of them"), ("job_id,workload_id,notebook,steps\na,W1,n.ipynb,1\n", "one of them"),
    ("job_id,workload_id,steps,colour\na,W1,1,red\n", "unknown"),
    ("job_id,workload_id,steps,arrival_s\na,W1,1,-3\n", "arrival_s"), ("job_id,workload_id,steps\n", "no row")])
def test_bad_files_of_jobs_are_refused(tmp_path, text, word):
    with pytest.raises(InputError, match=word):
        jobs_file.read(write(tmp_path / "jobs.csv", text), tmp_path)


def test_slots_share_the_cores_and_never_overlap():
    cores = len(psutil.Process().cpu_affinity())
    slots = [slot for slot in local_site.slots_here(cores) if slot.cores]
    assert sum(len(slot.cores) for slot in slots) == len({core for slot in slots for core in slot.cores}) == cores
    with pytest.raises(InputError, match="slots"):
        local_site.slots_here(cores + 1)


def test_jobs_on_a_gpu_draw_from_the_cores_of_the_host():
    slots = (Slot("cpu[0]", (0,)), Slot("cpu[1]", (1,)), Slot("cuda:0"))
    fleet = local_site.fleet_of(slots)
    assert fleet.host_cores == 2 and fleet.cpu_cores[0] == 1 and fleet.types == ("cpu", "cuda:0")
    assert local_site.fleet_of(slots[:2]).host_cores == np.inf  # nobody else draws from them
    assert local_site.fleet_of((Slot("cpu[node/0]"), Slot("cuda:A[node/0]"))).host_cores == np.inf  # of which host?


class Mortal(ProcessWorker):
    """A worker that is killed as soon as it has its first job, ``a``."""

    def send(self, *message):
        super().send(*message)
        if message[:2] == ("run", "a#1"):
            self.process._process.kill()


@pytest.mark.slow
def test_real_workloads_survive_the_death_of_a_worker(tmp_path):
    path = write(tmp_path / "jobs.csv", "job_id,workload_id,steps\na,W1,150\nb,W1,150\nc,W6,20\n")
    prepared = jobs_file.prepare(path, tmp_path / "out")
    assert (prepared.predicted_s > 0).all()
    ran = jobs_file.run(replace(prepared, spawn=Mortal), tmp_path / "out")
    assert sum("killed (signal 9)" in note for note in ran.facts["notes"]) == 1
    assert ran.schedule[ran.schedule["job_id"] == "a"]["status"].tolist() == ["retried", "done"]
    assert sorted(ran.ends["job_id"]) == ["a", "b", "c"] and set(ran.ends["status"]) == {"done"}
    assert {result["steps"] for result in ran.ends["result"]} == {150, 20}
    assert len(store.read(tmp_path / "out" / "schedule.csv", "schedule")) >= 3
    assert (tmp_path / "out" / "trace.json").is_file() and "done" in run_record.text(ran)


def test_paced_work_counts_whole_steps(monkeypatch):
    """Steps of 0.1 s by a clock that only they and sleep move: those that ended in time count, or else the first."""
    clock = [5.0]

    def passes(seconds):
        clock[0] += seconds

    trainer = SimpleNamespace(train=lambda steps: passes(0.1 * len(steps)))
    monkeypatch.setattr(tasks, "_cached_trainer", lambda *_: (trainer, None))
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=passes))
    found = tasks.paced(Job("cpu", (), 1), "W6", 0.55)
    assert found == {"step_s": pytest.approx(0.1), "n": 5} and clock[0] == pytest.approx(5.6)
    late = tasks.paced(Job("cpu", (), 1), "W6", 0.01, at_s=7.0)
    assert late == {"step_s": pytest.approx(0.1), "n": 1} and clock[0] == pytest.approx(7.1)


def test_the_command_answers_from_files(tmp_path):
    times = write(tmp_path / "t.csv", "job_id,cpu,gpu\na,4,1\nb,4,1\nc,2,\nd,3,2\n")
    devices = write(tmp_path / "d.csv", "device,type,count,idle_w,busy_w\nhost,cpu,1,10,50\ncard,gpu,1,30,300\n")
    found = api.schedule_files(times, devices)
    assert found.figures["makespan_s"] == 4 and found.figures["energy_j"] > 0 and found.figures["price"] is None
    actual = write(tmp_path / "a.csv", "job_id,cpu,gpu\na,4,3\nb,4,3\nc,2,\nd,3,2\n")
    late = api.schedule_files(times, devices, actual=actual)
    assert late.figures["makespan_s"] > 4 and late.figures["ratio"] >= 1
    found.write(tmp_path / "s.csv", tmp_path / "trace.json")
    assert len(store.read(tmp_path / "s.csv", "schedule")) == 4
