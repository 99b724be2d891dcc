"""Job mixes drawn from a table of rates: steps per second of each job class on each device type."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.schedule import bounds
from lib.schedule.problem import Fleet, Jobs, Problem


def draw(rates: pd.DataFrame, fleet: Fleet, count: int, seed: int, load: float = 0.0,
         span_s: tuple[float, float] = (60.0, 6000.0), memory_mb: np.ndarray | None = None) -> Problem:
    """Draw ``count`` jobs over the job classes, their seconds on their fastest type log-uniform within ``span_s``.

    ``rates``: one row per class, one column per type of ``fleet``; 0: cannot run there. With ``load`` jobs arrive as a Poisson
    process that keeps the devices busy for that share of time, if jobs run where the LP relaxation puts them; otherwise all are
    there at 0 s. ``memory_mb`` (classes) is the need of a job.
    """
    rng = np.random.default_rng(seed)
    job_class = rng.integers(len(rates), size=count)
    fastest_s = np.exp(rng.uniform(*np.log(span_s), count))
    speed = rates.to_numpy(float)[job_class]
    with np.errstate(divide="ignore"):
        times = fastest_s[:, None] * speed.max(axis=1, keepdims=True) / speed
    arrival = None
    if load:
        least_s = bounds.relaxation(times, fleet.counts).makespan_s
        arrival = np.cumsum(rng.exponential(least_s / count / load, count))
    jobs = Jobs.plain(count, arrival, job_class)
    if memory_mb is not None:
        jobs = replace(jobs, memory_mb=memory_mb[job_class])
    return Problem(jobs, fleet, times, times)
