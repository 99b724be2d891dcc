"""Mixes of jobs drawn from a table of rates: steps per second of each job class on each device type."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.schedule import bounds, portable
from lib.schedule.problem import Fleet, Jobs, Problem


def draw(rates: pd.DataFrame, fleet: Fleet, count: int, seed: int, load: float = 0.0,
         span_s: tuple[float, float] = (60.0, 6000.0), memory_mb: np.ndarray | None = None) -> Problem:
    """Draw ``count`` jobs over the job classes (rows), their seconds on their fastest type log-uniform within ``span_s``.

    ``rates``: a row a class, a column a type of ``fleet``; 0: cannot run there. With ``load`` they arrive as a Poisson process
    that keeps the devices busy to that share, were each job on average on the type that the LP relaxation gives it; without,
    all are there at 0 s. ``memory_mb`` is what a job of each class needs.
    """
    dice = np.random.default_rng(seed)
    job_class = dice.integers(len(rates), size=count)
    fastest_s = portable.exp(dice.uniform(*portable.log(span_s), count))
    speed = rates.to_numpy(float)[job_class]
    with np.errstate(divide="ignore"):
        times = fastest_s[:, None] * speed.max(axis=1, keepdims=True) / speed
    arrival = None
    if load:
        least_s = bounds.relaxation(times, fleet.counts).makespan_s
        arrival = np.cumsum(dice.exponential(least_s / count / load, count))
    jobs = Jobs.plain(count, arrival, job_class)
    if memory_mb is not None:
        jobs = replace(jobs, memory_mb=memory_mb[job_class])
    return Problem(jobs, fleet, times, times)
