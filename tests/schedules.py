"""What the tests of scheduling share."""

import numpy as np

from lib.schedule import metrics
from lib.schedule.policies import policy_for
from lib.schedule.simulate import simulate

TIMES, DEVICES = "job_id,cpu,gpu\na,10,2\nb,20,4\nc,6,3\n", "device,type,count,idle_w,busy_w\nc,cpu,1,5,50\ng,gpu,1,20,300\n"


def figures(problem, name="hybrid", objective="makespan", faults=None):
    """Return the figures of a policy on a problem."""
    return metrics.metrics(simulate(problem, policy_for(name, objective), faults))


def files(folder, **texts):
    """Write the files of a problem of three jobs, or other texts; return the path of each."""
    texts = {"times": TIMES, "devices": DEVICES, **texts}
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return {name: folder / f"{name}.csv" for name in texts}


def check_schedule(outcome, failures=False):
    """Check that every job ends once, where it can run and not before it came; devices and cores of the host do not overlap."""
    table, problem = outcome.schedule, outcome.problem
    jobs, types = table["job"].to_numpy(), problem.fleet.type_of[table["device_index"]]
    start_s, end_s = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    assert sorted(jobs[table["status"].isin(["done", "failed"])]) == list(range(len(problem.jobs)))
    assert failures or len(outcome.done) == len(problem.jobs)
    for _, rows in table.sort_values("start_s").groupby("device_index"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1] - 1e-9).all()
    assert problem.feasible[jobs, types].all()
    assert (start_s >= problem.jobs.arrival_s[jobs] - 1e-9).all()
    if np.isfinite(problem.fleet.host_cores):
        together = (start_s <= start_s[:, None]) & (end_s > start_s[:, None] + 1e-9)
        assert (together @ problem.cores[jobs, types] <= problem.fleet.host_cores + 1e-9).all()
