"""Files of jobs: what is refused, and a real run of two small workloads that survives the death of a worker."""

import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from lib import store
from lib.errors import InputError
from lib.schedule import api
from lib.schedule.runtime import jobs_file, run_record, tasks
from lib.schedule.runtime.worker_process import Job
from lib.schedule.runtime.workers import Slot


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
    slots = [slot for slot in jobs_file.slots_here(cores) if slot.cores]
    assert sum(len(slot.cores) for slot in slots) == len({core for slot in slots for core in slot.cores}) == cores
    with pytest.raises(InputError, match="slots"):
        jobs_file.slots_here(cores + 1)


def test_jobs_on_a_gpu_draw_from_the_cores_of_the_host():
    slots = (Slot("cpu[0]", (0,)), Slot("cpu[1]", (1,)), Slot("cuda:0"))
    fleet = jobs_file.fleet_of(slots)
    assert fleet.host_cores == 2 and fleet.cpu_cores[0] == 1 and fleet.types == ("cpu", "cuda:0")
    assert jobs_file.fleet_of(slots[:2]).host_cores == np.inf  # nobody else draws from them
    assert jobs_file.fleet_of((Slot("cpu[node/0]"), Slot("cuda:A[node/0]"))).host_cores == np.inf  # of which host?


def _kill_a_busy_worker(stop):
    """Kill one child that has used a processor for a while, once."""
    while not stop.is_set():
        for child in psutil.Process().children():
            if child.cpu_times().user > 5 and "spawn_main" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)
                return
        time.sleep(0.2)


def test_real_workloads_survive_the_death_of_a_worker(tmp_path):
    path = write(tmp_path / "jobs.csv", "job_id,workload_id,steps\na,W1,150\nb,W1,150\nc,W6,20\n")
    prepared = jobs_file.prepare(path, tmp_path / "out")
    assert (prepared.predicted_s > 0).all()
    stop = threading.Event()
    killer = threading.Thread(target=_kill_a_busy_worker, args=(stop,))
    killer.start()
    ran = jobs_file.run(prepared, tmp_path / "out")
    stop.set()
    killer.join()
    assert any("killed (signal 9)" in note for note in ran.facts["notes"]), "nobody was killed"
    assert sorted(ran.ends["job_id"]) == ["a", "b", "c"] and set(ran.ends["status"]) == {"done"}
    assert {result["steps"] for result in ran.ends["result"]} == {150, 20}
    assert len(store.read(tmp_path / "out" / "schedule.csv", "schedule")) >= 3
    assert (tmp_path / "out" / "trace.json").is_file() and "done" in run_record.words(ran)


@pytest.fixture
def threads():
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_paced_work_counts_whole_steps():
    found = tasks.paced(Job("cpu", (), 1), "W6", 0.5)
    assert found["n"] >= 2 and 0 < found["step_s"] <= 0.5
    late = tasks.paced(Job("cpu", (), 1), "W6", 1e-6, at_s=time.monotonic() + 0.2)  # too short for one: the first counts
    assert late["n"] == 1 and late["step_s"] > 1e-6


def test_the_command_answers_from_files(tmp_path):
    times = write(tmp_path / "t.csv", "job_id,cpu,gpu\na,4,1\nb,4,1\nc,2,\nd,3,2\n")
    devices = write(tmp_path / "d.csv", "device,type,count,idle_w,busy_w\nhost,cpu,1,10,50\ncard,gpu,1,30,300\n")
    found = api.ask_files(times, devices)
    assert found.figures["makespan_s"] == 4 and found.figures["energy_j"] > 0 and found.figures["price"] is None
    actual = write(tmp_path / "a.csv", "job_id,cpu,gpu\na,4,3\nb,4,3\nc,2,\nd,3,2\n")
    late = api.ask_files(times, devices, actual=actual)
    assert late.figures["makespan_s"] > 4 and late.figures["ratio"] >= 1
    found.write(tmp_path / "s.csv", tmp_path / "trace.json")
    assert len(store.read(tmp_path / "s.csv", "schedule")) == 4
