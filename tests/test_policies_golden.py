"""Every policy on drawn jobs, with right and wrong predictions: its makespan over the lower bound, as recorded."""

from pathlib import Path

import pandas as pd
import pytest

from lib.config import definitions
from lib.schedule import bounds, experiments, scenarios
from lib.schedule.baselines import BASELINES
from lib.schedule.policies import missing_device, policy_for
from lib.schedule.simulate import simulate

DATA = Path(__file__).parent / "data"
JOBS, SEEDS = 30, 3
CASES = {"exact": lambda draw, seed: draw(seed),
         "swapped": lambda draw, seed: experiments.swapped(draw(seed), seed),
         "noise 0.3": lambda draw, seed: experiments.noisy(draw(seed), 0.3, seed),
         "drift 0.2": lambda draw, seed: experiments.drifted(draw(seed), 0.2, seed)}
UNAWARE = ("exact", "swapped")  # cases of the baselines, which do not learn


def measured(mix):
    """Return the mean makespan over the lower bound (case, policy) of the jobs of a scenario."""
    times = pd.read_csv(DATA / "step_times.csv")  # predicted and measured step times of job classes
    draw = scenarios.job_mix(times, definitions.scenario(mix), JOBS)
    rows = []
    for case, problem_of in CASES.items():
        for seed in range(SEEDS):
            problem = problem_of(draw, seed)
            bound_s = bounds.makespan_bound(problem)
            for name in [*BASELINES, "hybrid"] if case in UNAWARE else ["hybrid"]:
                if not missing_device(name, problem.fleet):
                    end_s = simulate(problem, policy_for(name)).schedule["end_s"].max()
                    rows.append((case, name, end_s / bound_s))
    return pd.DataFrame(rows, columns=["case", "policy", "ratio"]).groupby(["case", "policy"])["ratio"].mean()


@pytest.mark.parametrize("mix", ["one_gpu", "large_gpu", "mixed", "cards"])
def test_every_policy_schedules_as_recorded(mix):
    recorded = pd.read_csv(DATA / "policies.csv").query(f"mix == '{mix}'").set_index(["case", "policy"])["ratio"]
    ratio = measured(mix)
    assert set(ratio.index) == set(recorded.index) and (ratio >= 1 - 1e-6).all()
    off = (ratio / recorded - 1).abs()
    assert off.drop("hybrid", level="policy").max() < 1e-3
    assert off.xs("hybrid", level="policy").max() < 0.02, "it learns: last digits of the processor count"
    exact = ratio["exact"]
    assert off["exact"]["hybrid"] < 1e-3
    assert exact["hybrid"] == exact.min(), "no other policy is better where times are known"
