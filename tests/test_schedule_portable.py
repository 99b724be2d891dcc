"""A recorded schedule is the same on any machine: whatever its clock, load, threads, hash seed, and vector instructions."""

import hashlib
import json
import math

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__ as vector_instructions

from lib.schedule import portable
from lib.schedule.policies.hybrid import local_search
from tests import python
from tests.conftest import busy_neighbours

GRID = np.concatenate([np.arange(1, 4000) / 7.0, np.ldexp(1.0, np.arange(-1074, 1023, 7)) * 1.3])
FIGURES = """
import json, sys, time
speed = float(sys.argv[1])
for name in ("time", "monotonic", "perf_counter", "process_time"):
    setattr(time, name, lambda real=getattr(time, name): speed * real())
from functools import partial
import numpy as np, pandas as pd
from lib.schedule import job_mixes as mixes
from lib.schedule import experiments
from lib.schedule.policies.registry import policy
from lib.schedule.problem import Fleet
rates = pd.DataFrame({"cpu": [3.0, 1.0, 7.0, 2.0], "t4": [9.0, 8.0, 11.0, 0.0], "h100": [40.0, 90.0, 21.0, 13.0]})
fleet = Fleet.from_counts({"cpu": 4, "t4": 2, "h100": 1}, idle_w=[10, 20, 60], busy_w=[90, 70, 500])
draw = partial(mixes.draw, rates, fleet, 40)
policies = {name: policy(name) for name in ("fastest", "longest-first", "hybrid")}
short = {goal: policy("hybrid", objective=goal) for goal in ("mean_jct", "p99_jct", "energy")}
wrong = {"noise": lambda seed: experiments.noisy(draw(seed), 1.0, seed),
         "drift": lambda seed: experiments.drifted(draw(seed), 0.2, seed),
         "swapped": lambda seed: experiments.swapped(draw(seed), seed),
         "none": lambda seed: experiments.without_predictions(draw(seed))}
tables = [experiments.compare({"mix": draw}, policies, 2)["makespan_s"],
          experiments.compare({"mix": draw, "load": lambda seed: draw(seed, 0.9)}, short, 1)["p99_jct_s"],
          experiments.compare({"mix": draw}, short, 1)["energy_j"],
          experiments.compare(wrong, policies, 2)["ratio"]]
print(json.dumps([repr(value) for table in tables for value in table.tolist()]))
"""
OTHER_PROCESSOR = {"NPY_DISABLE_CPU_FEATURES": " ".join(vector_instructions), "NUMBA_CPU_NAME": "generic",
                   "NUMBA_CPU_FEATURES": "", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-FMA_Usable,-AVX2_Usable"}


def figures(speed=1.0, **environment):
    """Return the figures of all kinds of evaluation, by a process whose clock runs ``speed`` times as fast."""
    return json.loads(python("-W", "ignore", "-c", FIGURES, speed, **environment).stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected():
    result = figures(OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    assert len(result) > 30 and len(set(result)) > 20
    return result


@pytest.mark.slow
def test_clocks_threads_hash_seeds_and_busy_neighbours_change_nothing(expected):
    with busy_neighbours(2):
        assert figures(100.0, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2", NUMBA_NUM_THREADS="1",
                       PYTHONHASHSEED="7") == expected


@pytest.mark.elsewhere
def test_a_processor_without_vector_instructions_and_a_slow_clock_give_the_same(expected, tmp_path):
    assert figures(0.01, **OTHER_PROCESSOR, NUMBA_CACHE_DIR=str(tmp_path)) == expected


def test_portable_functions_are_near_and_the_same_for_one_and_many():
    exponents = np.concatenate([np.linspace(-744.5, 709.75, 4001), [-746.0, 710.0, 0.0, -0.0, math.inf, -math.inf]])
    assert portable.log(GRID) == pytest.approx([math.log(value) for value in GRID], rel=5e-16, abs=0)
    assert portable.exp(exponents[:-6]) == pytest.approx(np.exp(exponents[:-6]), rel=5e-16, abs=5e-324)
    for log in (portable.log_one, local_search._log):
        assert portable.log(GRID).tolist() == [log(value) for value in GRID.tolist()]
    assert portable.exp(exponents).tolist() == [portable.exp_one(value) for value in exponents.tolist()]
    assert portable.log([0.0, math.inf]).tolist() == [-math.inf, math.inf] and np.isnan(portable.log([-1.0, math.nan])).all()


def test_portable_functions_give_the_bits_that_they_always_gave():
    """Of an additions-and-multiplications program IEEE 754 leaves no choice; other bits are other published numbers."""
    bits = hashlib.sha256(portable.log(GRID).tobytes() + portable.exp(GRID[:4900] - 300.0).tobytes()).hexdigest()
    assert bits[:16] == "c5622c2944850690"
