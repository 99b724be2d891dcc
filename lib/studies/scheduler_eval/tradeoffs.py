"""What is given up for what: energy for time, and what not knowing of contention on the host costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval import comparison

WEIGHTS = (0.0, 0.6, 0.75, 0.85, 0.95, 1.0)
TAKES = (0.0, 1.0, 2.0)  # cores of the host that a job on a GPU takes


def pareto(problem: Problem, weights: Sequence[float] = WEIGHTS) -> pd.DataFrame:
    """Return makespan and energy of ``hybrid`` for weights between them (1: energy alone matters), and which are on the front.

    A point is on the front when no other is at least as good in both and better in one. Beside it stand the baselines
    (``weight`` NaN). Raises InputError where watts are not known.
    """
    policies = []
    for weight in weights:
        weighted = {"makespan": max(1e-3, 1 - weight), "energy": weight} if weight else {"makespan": 1.0}
        policies.append(("hybrid", weight, {"objective": "energy" if weight else "makespan", "weights": weighted}))
    policies += [(name, np.nan, {}) for name in ("gpu-only", "fastest", "earliest-finish", "longest-first")]
    table = pd.DataFrame([{"policy": name, "weight": weight, **comparison.run(problem, name, compiled=False, **options)}
                          for name, weight, options in policies])
    values = table[["makespan_s", "energy_j"]].to_numpy(float)
    beaten = [bool(((values <= point).all(axis=1) & (values < point).any(axis=1)).any()) for point in values]
    return table.assign(front=~np.array(beaten))


def ignoring(draw: comparison.Mix, contention: Contention, names: Sequence[str] = ("longest-first", "hybrid"),
             seeds: int = 3) -> pd.DataFrame:
    """Return the simulated and the actual makespan of each policy when it knows nothing of contention, its mean, or every pair.

    ``simulated_s`` is the makespan in a simulation with what is ``known``; ``makespan_s`` that with the true contention;
    ``error`` is how far the one is off the other.
    """
    beliefs = {"nothing": None, "the mean": contention.averaged(), "every pair": contention}

    def rows(problem, _seed):
        for name in names:
            for label, known in beliefs.items():
                simulated_s, actual_s = (_makespan(problem, name, true, known) for true in (known, contention))
                yield {"policy": name, "known": label, "simulated_s": simulated_s, "makespan_s": actual_s,
                       "error": simulated_s / actual_s - 1}

    return comparison.paired(draw, seeds, "contention", rows)


def _makespan(problem: Problem, name: str, contention: Contention | None, known: Contention | None) -> float:
    schedule = simulate(problem, registry.policy(name), contention=contention, known_contention=known).schedule
    return float(schedule["end_s"].max())


def host_cores(draw: Callable[[float, int], Problem], contention: Contention, takes: Sequence[float] = TAKES,
               seeds: int = 3) -> pd.DataFrame:
    """Return makespans by how many host cores a GPU job takes: with the cores counted, and as if they were free.

    ``draw(cores, seed)`` gives the problem. Cores that more jobs ask for than there are, are shared by time, which slows all
    that need some.
    """
    def rows(problem, _seed):
        true = replace(contention, cores=problem.fleet.host_cores)
        free = replace(problem, fleet=replace(problem.fleet, host_cores=np.inf))
        return [{"cores": label, "makespan_s": _makespan(simulated, "hybrid", true, contention)}
                for label, simulated in (("counted", problem), ("ignored", free))]

    return pd.concat([comparison.paired(partial(draw, taken), seeds, "host cores", rows).assign(host_cores=taken)
                      for taken in takes], ignore_index=True)
