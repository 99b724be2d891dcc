"""What is given up for what: energy for time, and what not knowing of contention on the host costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.progress import track
from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval import comparison

WEIGHTS = (0.0, 0.6, 0.75, 0.85, 0.95, 1.0)
TAKES = (0.0, 1.0, 2.0)  # cores of the host that a job on a GPU takes


def pareto(problem: Problem, weights: Sequence[float] = WEIGHTS) -> pd.DataFrame:
    """Return makespan and energy of ``hybrid`` for weights between them (1: energy alone matters), and which are on the front.

    A point is on the front when no other is at least as good in both and better in one. Beside it stand the baselines
    (``weight`` NaN). Raises InputError where watts are not known.
    """
    rows = []
    for weight in weights:
        several = {"makespan": max(1e-3, 1 - weight), "energy": weight} if weight else {"makespan": 1.0}
        figures = _figures(problem, "hybrid", objective="energy" if weight else "makespan", weights=several)
        rows.append({"policy": "hybrid", "weight": weight, **figures})
    rows += [{"policy": name, "weight": np.nan, **_figures(problem, name)} for name in
             ("gpu-only", "fastest", "earliest-finish", "longest-first")]
    table = pd.DataFrame(rows)
    values = table[["makespan_s", "energy_j"]].to_numpy(float)
    beaten = [bool(((values <= one).all(axis=1) & (values < one).any(axis=1)).any()) for one in values]
    return table.assign(front=~np.array(beaten))


def _figures(problem: Problem, name: str, **options) -> dict[str, float | str | None]:
    figures = metrics.metrics(simulate(problem, registry.policy(name, **options)))
    return {name: figures[name] for name in ("makespan_s", "energy_j", "energy_source")}


def ignoring(draw: comparison.Mix, contention: Contention, names: Sequence[str] = ("longest-first", "hybrid"),
             seeds: int = 3) -> pd.DataFrame:
    """Return the simulated and the actual makespan of each policy when it knows nothing of contention, its mean, or every pair.

    ``simulated_s`` is the makespan in a simulation with what is ``known``; ``makespan_s`` that with the true contention;
    ``error`` is how far the one is off the other.
    """
    rows = []
    for seed in track(range(seeds), "contention"):
        problem = draw(seed)
        for name in names:
            for label, known in (("nothing", None), ("the mean", contention.averaged()), ("every pair", contention)):
                simulated_s = _makespan(problem, name, known, known)
                actual_s = _makespan(problem, name, contention, known)
                rows.append({"seed": seed, "policy": name, "known": label, "simulated_s": simulated_s, "makespan_s": actual_s,
                             "error": simulated_s / actual_s - 1})
    return pd.DataFrame(rows)


def _makespan(problem: Problem, name: str, contention: Contention | None, known: Contention | None) -> float:
    schedule = simulate(problem, registry.policy(name), contention=contention, known_contention=known).schedule
    return float(schedule["end_s"].max())


def host_cores(draw: Callable[[float, int], Problem], contention: Contention, takes: Sequence[float] = TAKES,
               seeds: int = 3) -> pd.DataFrame:
    """Return makespans by how many host cores a GPU job takes: with the cores counted, and as if they were free.

    ``draw(cores, seed)`` gives the problem. Cores that more jobs ask for than there are, are shared by time, which slows all
    that need some.
    """
    rows = []
    for taken in track(takes, "host cores"):
        for seed in range(seeds):
            problem = draw(taken, seed)
            true = replace(contention, cores=problem.fleet.host_cores)
            free = replace(problem, fleet=replace(problem.fleet, host_cores=np.inf))
            for label, one in (("counted", problem), ("ignored", free)):
                span_s = _makespan(one, "hybrid", true, contention)
                rows.append({"host_cores": taken, "seed": seed, "cores": label, "makespan_s": span_s})
    return pd.DataFrame(rows)
