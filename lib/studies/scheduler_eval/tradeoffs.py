"""What is given up for what: energy for time, and what not knowing of contention on the host costs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval import comparison

Progress = Callable[[Iterable, str], Iterable]
WEIGHTS = (0.0, 0.6, 0.75, 0.85, 0.95, 1.0)
HOLDS = (0.0, 1.0, 2.0)  # cores of the host that a job on a GPU holds


def pareto(asked: Problem, weights: Sequence[float] = WEIGHTS) -> pd.DataFrame:
    """Return makespan and energy of ``hybrid`` for weights between them (1: energy alone matters), and which are on the front.

    A point is on the front when no other is at least as good in both and better in one. Beside it stand the baselines
    (``weight`` NaN). Raises InputError where watts are not known.
    """
    rows = []
    for weight in weights:
        several = {"makespan": max(1e-3, 1 - weight), "energy": weight} if weight else {"makespan": 1.0}
        found = _figures(asked, "hybrid", objective="energy" if weight else "makespan", weights=several)
        rows.append({"policy": "hybrid", "weight": weight, **found})
    rows += [{"policy": name, "weight": np.nan, **_figures(asked, name)} for name in
             ("gpu-only", "fastest", "earliest-finish", "longest-first")]
    table = pd.DataFrame(rows)
    values = table[["makespan_s", "energy_j"]].to_numpy(float)
    beaten = [bool(((values <= one).all(axis=1) & (values < one).any(axis=1)).any()) for one in values]
    return table.assign(front=~np.array(beaten))


def _figures(asked: Problem, name: str, **options) -> dict[str, float]:
    found = metrics.metrics(simulate(asked, registry.policy(name, **options)))
    return {"makespan_s": found["makespan_s"], "energy_j": found["energy_j"]}


def ignoring(draw: comparison.Mix, contention: Contention, names: Sequence[str] = ("longest-first", "hybrid"), seeds: int = 3,
             progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return what each policy foresees and gets when it is told nothing of contention, its mean, or every pair.

    ``foreseen_s`` is the makespan of the same policy in a simulation with what it is told; ``makespan_s`` that with the true
    contention; ``error`` is how far the one is off the other.
    """
    rows = []
    for seed in progress(range(seeds), "contention"):
        asked = draw(seed)
        for name in names:
            for told, known in (("nothing", None), ("the mean", contention.averaged()), ("every pair", contention)):
                foreseen = _makespan(asked, name, known, known)
                real = _makespan(asked, name, contention, known)
                rows.append({"seed": seed, "policy": name, "told": told, "foreseen_s": foreseen, "makespan_s": real,
                             "error": foreseen / real - 1})
    return pd.DataFrame(rows)


def _makespan(asked: Problem, name: str, contention: Contention | None, told: Contention | None) -> float:
    return float(simulate(asked, registry.policy(name), contention=contention, known=told).schedule["end_s"].max())


def holding(draw: Callable[[float, int], Problem], contention: Contention, holds: Sequence[float] = HOLDS, seeds: int = 3,
            progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return makespans by how many host cores a GPU job holds: with the cores counted, and as if they were free.

    ``draw(cores, seed)`` gives the problem. Cores that more jobs ask for than there are, are shared by time, which slows all
    that need some.
    """
    rows = []
    for held in progress(holds, "host cores"):
        for seed in range(seeds):
            asked = draw(held, seed)
            true = replace(contention, cores=asked.fleet.host_cores)
            free = replace(asked, fleet=replace(asked.fleet, host_cores=np.inf))
            for label, mine in (("counted", asked), ("ignored", free)):
                span_s = _makespan(mine, "hybrid", true, contention)
                rows.append({"host_cores": held, "seed": seed, "cores": label, "makespan_s": span_s})
    return pd.DataFrame(rows)
