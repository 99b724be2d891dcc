"""Timing, load, machine and ceilings: known answers, laws, and neighbours that must be seen."""

import math
import time

import numpy as np
import pandas as pd
import pytest
import torch

from lib import paths, store
from lib.config.notebooks import MachineParams
from lib.measure import ceilings, disturbance, machine, probes, statistics, timing, worker
from lib.measure.cpu_quota import cpu_quota
from lib.measure.training import summary
from lib.schedule.run import slots
from tests import refused, written
from tests.conftest import busy_neighbours

CPU = torch.device("cpu")
QUIET = disturbance.Load(1.0, 1.0, 0.0, 0.0, 0.0)


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


@pytest.mark.parametrize("steps, seen, threads, twin, verdict, reason", [
    ([10] * 30, QUIET, 2, 10.2, "stable", ""),
    ([10] * 10 + [10.5] * 10 + [11] * 10, QUIET, 2, None, "noisy", "thirds differ by 10%"),
    ([10, 20] * 15, QUIET, 2, None, "unusable", "IQR is 67%"),
    ([10] * 30, QUIET, 2, 12.0, "noisy", "pipelined pass took 12.0 ms, +20%"),
    ([10] * 30, disturbance.Load(1, 1, 0.9, 0.1, 0), 64, None, "unusable", "others took 0.9 cores and the host 0.1"),
])
def test_the_judge(monkeypatch, steps, seen, threads, twin, verdict, reason):
    monkeypatch.setattr(disturbance, "own_cores", lambda: [0, 1])
    found, why = summary.judge(np.array(steps, float), seen, threads, twin)
    assert found == verdict
    assert reason in why
    assert bool(why) == (verdict != "stable")


@pytest.mark.slow
def test_a_busy_neighbour_is_seen():
    with busy_neighbours(1):
        time.sleep(0.2)
        watch = disturbance.LoadWatch()
        time.sleep(1.0)
        seen = watch.reading()
    assert seen.other_cores > 0.2, seen
    assert seen.own_cores < 0.2


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


TREES = {
    "v2, docker --cpus 2": (2.0, "0::/", {"cpu.max": "200000 100000"}),
    "v2, the host itself": (math.inf, "0::/init.scope", {"init.scope/cpu.max": "max 100000"}),
    "v2, a parent's limit": (1.5, "0::/pods/one/inner",
                             {"pods/cpu.max": "150000 100000", "pods/one/cpu.max": "max 100000",
                              "pods/one/inner/cpu.max": "400000 100000", "pods/two/cpu.max": "10000 100000"}),
    "not Linux": (math.inf, "", {})}


@pytest.mark.parametrize("tree", TREES)
def test_the_quota_of_a_container_is_the_least_of_its_groups(tmp_path, tree):
    quota, groups, limits = TREES[tree]
    written(tmp_path, {"proc/self/cgroup": groups})
    written(tmp_path, {f"sys/fs/cgroup/{name}": f"{content}\n" for name, content in limits.items()})
    assert cpu_quota(tmp_path) == quota


def test_threads_slots_and_the_machines_id_follow_the_quota_of_a_container(monkeypatch):
    monkeypatch.delenv(worker._CORES, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    monkeypatch.setattr(disturbance, "free_cores", lambda: 64)
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
    ceilings.ceilings(p)
    assert {path.name for path in paths.CEILINGS.glob("*-v2.csv")} == {"ceilings_cpu-v2.csv", "overheads_cpu-v2.csv"}
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    (home / "reference/box/runs").mkdir(parents=True)
    (home / "data/ceilings").rename(home / "reference/box/ceilings")
    replayed = ceilings.ceilings(MachineParams(source="replay"))
    pd.testing.assert_frame_equal(replayed.table, store.read(home / "reference/box/ceilings/ceilings_cpu-v2.csv", "ceilings"))
    assert "REPLAY of ceilings_cpu-v2.csv" in replayed.note
    with refused("no ceilings of cuda:0"):
        ceilings.ceilings(MachineParams(source="replay", device="cuda"))


def test_nothing_that_is_half_in_cache_is_called_memory(monkeypatch):
    monkeypatch.setattr(machine, "cache_bytes", lambda: {"L1": 2**15, "L2": 2**20, "L3": 2**25})
    triads = probes.triad_probes(MachineParams(triad_max_mb=300), CPU, 4)
    sizes = {level: [p.bytes for p in triads if p.level == level] for level in ("L2", "L3", "RAM")}
    assert max(sizes["L2"]) <= 2**22 < min(sizes["L3"])
    assert max(sizes["L3"]) <= 2**25 < 4 * 2**25 * 0.999 <= min(sizes["RAM"])
