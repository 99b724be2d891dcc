"""Timing, load, machine and ceilings: known answers, laws, and neighbours that must be seen."""

import dataclasses
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import paired
from lib import paths, store
from lib.config.notebooks import MachineParams
from lib.measure import ceilings, load, machine, statistics, timing, worker
from lib.measure.cpu_quota import cpu_quota
from lib.measure.training import summary
from lib.schedule.run import slots
from tests import python, refused, written
from tests.conftest import busy_neighbours

CPU = torch.device("cpu")
QUIET = load.Load(1.0, 1.0, 0.0, 0.0, 0.0)


def test_verdicts_at_their_borders():
    def of(spread):
        return statistics.Timing(np.array([100 - spread / 2] * 5 + [100] * 2 + [100 + spread / 2] * 5)).verdict

    assert [of(9), of(11), of(24), of(26)] == ["stable", "noisy", "noisy", "unusable"]
    assert statistics.worst("stable", "unusable", "noisy") == "unusable"


def test_the_bootstrap_interval_covers():
    draw, hits = np.random.default_rng(1), 0
    for seed in range(200):
        low, high = statistics.bootstrap(draw.lognormal(0, 0.3, 40), draws=300, seed=seed)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


@pytest.mark.parametrize("call_ms, calls, samples", [(8.0, 1, 20), (0.25, 4, 160), (0.01, 100, 160)])
def test_measure_fills_its_samples_and_its_budget(clock, call_ms, calls, samples):
    result = timing.measure(lambda: clock.work(call_ms / 1e3), CPU, budget_s=0.2)
    assert result.samples_ms == pytest.approx(call_ms), "one call, not several"
    assert result.calls == calls, "as many as fill a millisecond"
    assert abs(result.n - samples) <= 1, "for the four fifths of the budget that warming up leaves"
    assert clock.spent_s <= 0.2 + 2 * call_ms / 1e3 * calls


def test_measure_takes_few_samples_where_they_cost_too_much(clock):
    for most_s, samples in ((np.inf, 5), (3.0, 1)):
        assert timing.measure(lambda: clock.work(2), CPU, budget_s=1.0, least=5, most_s=most_s).n == samples


def test_compare_finds_a_ratio_through_drift():
    drift = iter(np.linspace(1, 3, 400))
    noise = np.random.default_rng(0)
    result = paired.compare(lambda: 1.2 * next(drift) * noise.lognormal(0, 0.02),
                            lambda: next(drift) * noise.lognormal(0, 0.02), pairs=100)
    assert result.low <= 1.2 <= result.high
    assert result.high - result.low < 0.03


@pytest.mark.parametrize("steps, seen, threads, twin, verdict, reason", [
    ([10] * 30, QUIET, 2, 10.2, "stable", ""),
    ([10] * 10 + [10.5] * 10 + [11] * 10, QUIET, 2, None, "noisy", "thirds differ by 10%"),
    ([10, 20] * 15, QUIET, 2, None, "unusable", "IQR is 67%"),
    ([10] * 30, QUIET, 2, 12.0, "noisy", "pipelined pass took 12.0 ms, +20%"),
    ([10] * 30, load.Load(1, 1, 0.9, 0.1, 0), 64, None, "unusable", "others took 0.9 cores and the host 0.1"),
])
def test_the_judge(monkeypatch, steps, seen, threads, twin, verdict, reason):
    monkeypatch.setattr(load, "own_cores", lambda: [0, 1])
    found, why = summary.judge(np.array(steps, float), seen, threads, twin)
    assert found == verdict
    assert reason in why
    assert bool(why) == (verdict != "stable")


@pytest.mark.slow
def test_a_busy_neighbour_is_seen():
    with busy_neighbours(1):
        time.sleep(0.2)
        watch = load.LoadWatch()
        time.sleep(1.0)
        seen = watch.reading()
    assert seen.other_cores > 0.2, seen
    assert seen.own_cores < 0.2


@pytest.mark.parametrize("cores, seconds", [([2], (30, 3)), ([0, 2], (40, 4)), ([1, 2], (60, 6))])
def test_seconds_are_counted_on_our_own_cores_by_their_numbers_and_else_on_all(monkeypatch, tmp_path, cores, seconds):
    """Of core 1, which is offline, Linux has no line."""
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\n" + "".join(
        f"cpu{core} {busy_s * tick} 0 0 9 9 0 0 {busy_s * tick // 10} 7 0\n" for core, busy_s in ((0, 10), (2, 30), (3, 20))))
    monkeypatch.setattr(load, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(load, "own_cores", lambda: cores)
    assert load.busy_seconds() == pytest.approx(seconds)


LEADER = """
import multiprocessing, time

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def follow(pipe):
    from lib.measure import load
    watch = load.LoadWatch()
    pipe.send("begun")
    pipe.recv()
    seen = watch.reading()
    pipe.send(seen.own_cores * seen.seconds)

if __name__ == "__main__":
    from lib.measure import load
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=follow, args=(theirs,))
    worker.start()
    ours.recv()
    watch = load.LoadWatch()
    sibling = context.Process(target=spin, args=(0.3,))
    sibling.start()
    spin(0.3)
    sibling.join()
    ours.send("look")
    seen = watch.reading()
    print(ours.recv(), seen.own_cores * seen.seconds)
    worker.join()
"""


@pytest.mark.slow
def test_children_and_for_a_worker_its_leader_and_the_other_workers_are_not_others(tmp_path):
    program = tmp_path / "leader.py"
    program.write_text(LEADER)
    done = python(program, PYTHONPATH=str(paths.ROOT))
    assert min(map(float, done.stdout.split())) >= 0.55, "what the leader and its other worker used is counted as ours"


def test_ids_keep_hardware_and_software_apart():
    here, threads = machine.ids(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        changed = machine.ids()
    finally:
        torch.set_num_threads(threads)
    assert changed["hardware_id"] == here["hardware_id"]
    assert changed["software_id"] != here["software_id"]
    assert machine.name().endswith(here["hardware_id"])


def test_limits_make_a_machine_of_their_own_and_none_change_nothing(monkeypatch):
    for name in (*machine._INSTRUCTION_SETS.values(), worker._CORES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    fresh = machine.hardware.__wrapped__
    plain = fresh()
    assert set(plain) == {"cpu", "arch", "cores", "cache_kib", "memory_gib", "gpus"}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert fresh() == {**plain, "instruction_sets": {"onednn": "avx2", "aten": "avx2"}}
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {2})
    limited = fresh()
    monkeypatch.setattr(machine, "hardware", lambda: limited)
    assert limited["usable_cores"] == 1
    assert machine.name().endswith(f"-1c-avx2-{store.digest(limited)}")


V1 = "30 23 0:28 {mounted} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n" \
     "31 23 0:29 / /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
V2 = "30 23 0:28 {mounted} /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
TREES = {
    "v2, docker --cpus 2": (2.0, V2, "/", "0::/", {"cpu.max": "200000 100000"}),
    "v2, the host itself": (math.inf, V2, "/", "0::/init.scope", {"init.scope/cpu.max": "max 100000"}),
    "v2, a parent's limit": (1.5, V2, "/", "0::/pods/one/inner",
                             {"pods/cpu.max": "150000 100000", "pods/one/cpu.max": "max 100000",
                              "pods/one/inner/cpu.max": "400000 100000", "pods/two/cpu.max": "10000 100000"}),
    "v2, below its own mount": (3.0, V2, "/box", "0::/box/inner", {"inner/cpu.max": "300000 100000"}),
    "v2, outside of its mount": (4.0, V2, "/", "0::/../other", {"cpu.max": "400000 100000"}),
    "v1, docker --cpus 2": (2.0, V1, "/docker/1f", "4:cpu,cpuacct:/docker/1f\n3:cpuset:/docker/1f",
                            {"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "50000",
                             "cpuset/cpu.cfs_quota_us": "1000", "cpuset/cpu.cfs_period_us": "50000"}),
    "v1, no limit": (math.inf, V1, "/", "4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1",
                                                            "cpu,cpuacct/cpu.cfs_period_us": "100000"}),
    "v1, nested": (0.5, V1, "/", "4:cpu,cpuacct:/slurm/job", {"cpu,cpuacct/slurm/cpu.cfs_quota_us": "50000",
                                                              "cpu,cpuacct/slurm/cpu.cfs_period_us": "100000"}),
    "not Linux": (math.inf, "", "/", "", {})}


@pytest.mark.parametrize("tree", TREES)
def test_the_quota_of_a_container_is_the_least_of_its_groups(tmp_path, tree):
    quota, mounts, mounted, groups, limits = TREES[tree]
    written(tmp_path, {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts.format(mounted=mounted),
                       **{f"sys/fs/cgroup/{name}": f"{content}\n" for name, content in limits.items()}})
    assert cpu_quota(tmp_path) == quota


def test_threads_slots_and_the_machines_id_follow_the_quota_of_a_container(monkeypatch):
    monkeypatch.delenv(worker._CORES, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    monkeypatch.setattr(load, "free_cores", lambda: 64)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    for quota, cores in ((2.0, 2), (2.9, 2), (0.5, 1), (math.inf, 64)):
        monkeypatch.setattr(worker, "cpu_quota", lambda quota=quota: quota)
        machine.fit_quota()
        assert len(worker.own_cores()) == 64, "what others do on all of them is watched"
        assert worker.usable_cores() == cores == sum(len(slot.cores) for slot in slots.slots_here())
        assert machine.hardware.__wrapped__().get("usable_cores", 64) == cores
    assert set_to == [2, 2, 1]


def test_the_reference_machine_keeps_its_id():
    facts = store.read_json(next((paths.REFERENCE / "amd-epyc-2c-ea2da3d4/ceilings").glob("*.meta.json")))
    assert store.digest(facts["hardware"]) == facts["hardware_id"] == "ea2da3d4"
    assert set(facts["hardware"]) == {"cpu", "arch", "cores", "cache_kib", "memory_gib", "gpus"}


def test_a_pinned_worker_is_no_machine_of_its_own_and_a_pinned_run_is(monkeypatch):
    """A thread stands for the process: it has cores of its own, too."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core cannot be shared out")
    for pin, usable in ((lambda: os.sched_setaffinity(0, cores[:1]), 1),
                        (lambda: worker.pin((cores[0],)), machine.hardware().get("usable_cores"))):
        monkeypatch.setattr(os, "environ", {**os.environ})
        with ThreadPoolExecutor(1) as thread:
            thread.submit(pin).result()
            assert thread.submit(machine.hardware.__wrapped__).result().get("usable_cores") == usable
            assert thread.submit(os.sched_getaffinity, 0).result() == {cores[0]}


def test_a_list_of_devices_may_be_named_by_a_word(monkeypatch):
    """Which lists are refused: test_sweep, test_report."""
    monkeypatch.setattr(machine, "devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    assert [machine.several(words) for words in ("all", "auto", "cuda:1, cpu")] == [
        ["cpu", "cuda:0", "cuda:1"], ["cuda:0"], ["cuda:1", "cpu"]]


@pytest.mark.slow
def test_ceilings_are_written_and_replayed(home, quiet, monkeypatch):
    p = MachineParams(budget_s=1, gemm_max=512, triad_max_mb=8, device="cpu")
    found = ceilings.ceilings(p)
    assert set(found.table["level"]) >= {"compute", "RAM"}
    again = ceilings.ceilings(p)
    assert [path.name for path in again.files] == ["ceilings_cpu-v2.csv", "overheads_cpu-v2.csv"]
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    (home / "reference/box/runs").mkdir(parents=True)
    (home / "data/ceilings").rename(home / "reference/box/ceilings")
    replayed = ceilings.ceilings(MachineParams(source="replay"))
    pd.testing.assert_frame_equal(replayed.table, store.read(replayed.files[0], "ceilings"))
    assert "REPLAY of ceilings_cpu-v2.csv" in replayed.note
    with refused("no ceilings of cuda:0"):
        ceilings.ceilings(MachineParams(source="replay", device="cuda"))


def test_ceilings_of_a_busy_machine_are_the_best_there_is_and_say_so_unless_one_row_is_usable():
    found = ceilings.ceilings(MachineParams(source="replay"))
    fp32 = "level == 'compute' and dtype == 'fp32'"
    rows = found.table.query(fp32).index
    rates, words = found.table["peak_gflops"][rows], "UNUSABLE, measured on a busy machine and perhaps too low: fp32."
    for first, rate, warning in (("unusable", rates.max(), words), ("noisy", rates.iloc[0], "")):
        verdict = found.table["verdict"].copy()
        verdict[rows] = [first, *["unusable"] * (len(rows) - 1)]
        busy = dataclasses.replace(found, table=found.table.assign(verdict=verdict))
        best = busy.best.query(fp32)
        assert set(best["verdict"]) == {first} and best["peak_gflops"].max() == rate and busy.warning == warning


def test_nothing_that_is_half_in_cache_is_called_memory(monkeypatch):
    monkeypatch.setattr(machine, "cache_bytes", lambda: {"L1": 2**15, "L2": 2**20, "L3": 2**25})
    probes = ceilings._triad_probes(MachineParams(triad_max_mb=300), CPU, 4)
    sizes = {level: [p.bytes for p in probes if p.level == level] for level in ("L2", "L3", "RAM")}
    assert max(sizes["L2"]) <= 2**22 < min(sizes["L3"])
    assert max(sizes["L3"]) <= 2**25 < 4 * 2**25 * 0.999 <= min(sizes["RAM"])
