"""Timing, load, machine and ceilings: known answers, laws, and neighbours that must be seen."""

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import paths, store
from lib.config.notebooks import MachineParams
from lib.errors import InputError
from lib.measure import archive, ceilings, load, machine, timing
from lib.measure.training import summary
from tests.conftest import busy_neighbours

CPU = torch.device("cpu")
QUIET = load.Load(1.0, 1.0, 0.0, 0.0, 0.0)


def test_verdicts_at_their_borders():
    def of(spread):
        return timing.Timing(np.array([100 - spread / 2] * 5 + [100] * 2 + [100 + spread / 2] * 5)).verdict

    assert [of(9), of(11), of(24), of(26)] == ["stable", "noisy", "noisy", "unusable"]
    assert timing.worst("stable", "unusable", "noisy") == "unusable"


@given(st.lists(st.floats(0.01, 1e4), min_size=3, max_size=60))
def test_the_interval_holds_the_median_and_scales(samples):
    one = timing.Timing(np.array(samples))
    low, high = one.interval_ms()
    assert min(samples) <= low <= one.median_ms * (1 + 1e-12)
    assert one.median_ms <= high * (1 + 1e-12) <= max(samples) * (1 + 1e-9)
    twice = timing.Timing(2 * np.array(samples))
    assert twice.interval_ms() == pytest.approx((2 * low, 2 * high))
    assert twice.verdict == one.verdict


def test_the_bootstrap_interval_covers():
    draw, hits = np.random.default_rng(1), 0
    for seed in range(200):
        low, high = timing.bootstrap(draw.lognormal(0, 0.3, 40), draws=300, seed=seed)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_measure_finds_a_known_time():
    result = timing.measure(lambda: time.sleep(0.002), CPU, budget_s=0.2)
    assert result.samples_ms.min() >= 2.0
    assert result.median_ms < 20, "one call, not several"
    assert result.n >= 5
    quick = timing.measure(lambda: None, CPU, budget_s=0.05)
    assert quick.calls > 1000, "calls shorter than the clock's cost are timed many at a time"


def test_compare_finds_a_ratio_through_drift():
    drift = iter(np.linspace(1, 3, 400))
    noise = np.random.default_rng(0)
    result = timing.compare(lambda: 1.2 * next(drift) * noise.lognormal(0, 0.02),
                            lambda: next(drift) * noise.lognormal(0, 0.02), pairs=100)
    assert result.low <= 1.2 <= result.high
    assert result.high - result.low < 0.03


@pytest.mark.parametrize(("steps", "seen", "threads", "twin", "earlier", "verdict", "reason"), [
    ([10] * 30, QUIET, 2, 10.2, [9.9, 10.1], "stable", ""),
    ([10] * 10 + [10.5] * 10 + [11] * 10, QUIET, 2, None, None, "noisy", "thirds differ by 10%"),
    ([10, 20] * 15, QUIET, 2, None, None, "unusable", "IQR is 67%"),
    ([10] * 30, QUIET, 2, 12.0, None, "noisy", "pipelined pass took 12.0 ms, +20%"),
    ([10] * 30, QUIET, 2, None, [10.5], "noisy", "earlier stable runs of the same took 10.5 ms, +5%"),
    ([], load.Load(1, 1, 0.2, 0, 0), 64, None, None, "noisy", "others took 0.2 cores"),
    ([10] * 30, load.Load(1, 1, 0.9, 0.1, 0), 64, None, None, "unusable", "others took 0.9 cores and the host 0.1"),
])
def test_the_judge(monkeypatch, steps, seen, threads, twin, earlier, verdict, reason):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    found, why = summary.judge(np.array(steps, float), seen, threads, twin, earlier)
    assert found == verdict
    assert reason in why
    assert bool(why) == (verdict != "stable")


def test_idle_cores_may_be_used_by_others(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert load.Load(1, 4, 3.0, 0, 0).crowding(threads=4) == 0
    assert load.Load(1, 4, 8.0, 0, 0).crowding(threads=4) == 2
    assert load.Load(1, 16, 0.3, 0.1, 0).crowding(threads=16) == pytest.approx(0.4)


def test_a_busy_neighbour_is_seen():
    with busy_neighbours(1):
        time.sleep(0.2)
        with load.LoadWatch() as watch:
            time.sleep(1.0)
            seen = watch.reading()
    assert seen.other_cores > 0.2, seen
    assert seen.own_cores < 0.2


def test_children_are_not_others():
    program = ("import subprocess, sys, time\nfrom lib.measure import load\n"
               "with load.LoadWatch() as watch:\n"
               " c = subprocess.Popen([sys.executable, '-c', 'import time\\nt=time.time()\\nwhile time.time()-t<0.6: pass'])\n"
               " c.wait()\n print(watch.reading().own_cores)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.3


def test_a_device_is_measured_by_one_process_at_a_time():
    name = f"test-{time.monotonic_ns()}"
    program = ("import sys\nfrom lib.measure import load\n"
               f"with load.device_lock({name!r}):\n print('held', flush=True); sys.stdin.read()")
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match="is being measured by another process"), load.device_lock(name, timeout_s=0.2):
        pass
    holder.kill()
    holder.wait()
    with load.device_lock(name, timeout_s=5):
        pass


def test_ids_are_stable_and_keep_hardware_and_software_apart():
    here = machine.ids()
    program = "from lib.measure import machine; i = machine.ids(); print(i['hardware_id'])"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert here["hardware_id"] == other
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        changed = machine.ids()
    finally:
        torch.set_num_threads(threads)
    assert changed["hardware_id"] == here["hardware_id"]
    assert changed["software_id"] != here["software_id"]
    assert machine.name().endswith(here["hardware_id"])


def test_devices_that_are_not_here_are_named():
    with pytest.raises(InputError, match="device 'cuda:77' is not here; this machine has: cpu"):
        machine.device("cuda:77")
    assert machine.device("cpu") == CPU
    assert str(machine.device("auto")) in machine.devices()


def test_ceilings_are_written_and_replayed(home, quiet, monkeypatch):
    p = MachineParams(budget_s=1, gemm_max=512, triad_max_mb=8, device="cpu")
    found = ceilings.ceilings(p)
    assert set(found.table["level"]) >= {"compute", "RAM"}
    fp32 = found.table[(found.table.dtype == "fp32") & found.table.peak_gflops.notna()]
    assert (fp32.peak_gflops > 1).all()
    assert (found.table.peak_gbps.dropna() > 0.1).all()
    again = ceilings.ceilings(p)
    assert [path.name for path in again.files] == ["ceilings_cpu-v2.csv", "overheads_cpu-v2.csv"]
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    (home / "reference" / "box" / "runs").mkdir(parents=True)
    (home / "data" / "ceilings").rename(home / "reference" / "box" / "ceilings")
    replayed = ceilings.ceilings(MachineParams(source="replay"))
    pd.testing.assert_frame_equal(replayed.table, store.read(replayed.files[0], "ceilings"))
    assert "REPLAY of ceilings_cpu-v2.csv" in replayed.note
    with pytest.raises(InputError, match="no ceilings of cuda:0"):
        ceilings.ceilings(MachineParams(source="replay", device="cuda"))
    with pytest.raises(InputError, match="no reference machine 'nope'.*box"):
        archive.folders("replay", "nope")


def test_ceilings_of_a_busy_machine_say_so():
    found = ceilings.ceilings(MachineParams(source="replay"))
    assert len(found.best)
    for rows in (found.table["dtype"] == "fp32", found.table["level"] == found.last_level):
        busy = found.table.assign(verdict=found.table["verdict"].mask(rows, "unusable"))
        with pytest.raises(InputError, match="is unusable: the machine was busy; measure again"):
            assert len(dataclasses.replace(found, table=busy).best)


def test_levels_of_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "cache_bytes", lambda: {"L1": 2**15, "L2": 2**20, "L3": 2**25})
    assert machine.levels(CPU, 4) == {"L1": 2**17, "L2": 2**22, "L3": 2**25}
    probes = ceilings._triad_probes(MachineParams(triad_max_mb=300), CPU, 4)
    sizes = {level: [p.bytes for p in probes if p.row["level"] == level] for level in ("L2", "L3", "RAM")}
    assert max(sizes["L2"]) <= 2**22 < min(sizes["L3"])
    assert max(sizes["L3"]) <= 2**25
    assert min(sizes["RAM"]) >= 4 * 2**25 * 0.999, "nothing that is half in cache is called RAM"


def test_fresh_reference_is_needed(home, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    with pytest.raises(InputError, match="there are: none"):
        archive.folders("replay")
