"""What is given up for what: energy for time, and what not knowing of contention on the host costs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.schedule import metrics, mixes, policies
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Problem
from lib.schedule.simulate import simulate

Progress = Callable[[Iterable, str], Iterable]
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0)


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
    found = metrics.metrics(simulate(asked, policies.policy(name, **options)))
    return {"makespan_s": found["makespan_s"], "energy_j": found["energy_j"]}


def ignoring(asked: Problem, contention: Contention, names: Sequence[str] = ("longest-first", "hybrid")) -> pd.DataFrame:
    """Return what each policy foresees and gets when it is told nothing of contention, its mean, or every pair.

    ``foreseen_s`` is the makespan of the same policy in a simulation without contention (or with the mean one);
    ``makespan_s`` that with the true contention.
    """
    rows = []
    for name in names:
        for told, known in (("nothing", None), ("the mean", contention.ignoring_kinds()), ("every pair", contention)):
            foreseen = simulate(asked, policies.policy(name), contention=known, told=known)
            real = simulate(asked, policies.policy(name), contention=contention, told=known)
            ends = [float(outcome.schedule["end_s"].max()) for outcome in (foreseen, real)]
            rows.append({"policy": name, "told": told, "foreseen_s": ends[0], "makespan_s": ends[1],
                         "error": ends[0] / ends[1] - 1})
    return pd.DataFrame(rows)


def desk(rates: pd.DataFrame, contention: Contention, cores: int, host_cores: float, count: int, seed: int) -> Problem:
    """Return jobs for ``cores`` CPU slots of one core and one GPU, each of whose jobs holds ``host_cores`` cores of the host.

    ``rates``: steps per second, columns ``cpu`` (alone on a slot) and the GPU.
    """
    types = tuple(rates.columns)
    fleet = replace(Fleet.of({name: cores if name == "cpu" else 1 for name in types},
                             cpu_cores=[1.0 if name == "cpu" else np.nan for name in types]), host_cores=float(cores))
    drawn = mixes.draw(rates, fleet, count, seed)
    return replace(drawn, jobs=replace(drawn.jobs, cpu_cores=np.full(count, host_cores)))


def holding(rates: pd.DataFrame, contention: Contention, cores: int, holds: Sequence[float] = (0.0, 0.5, 1.0, 2.0),
            count: int = 100, seeds: int = 3, progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return makespans by how many host cores a GPU job holds: planned with them, and as if they were free.

    Cores that more jobs ask for than there are, are shared by time, which slows all that need some.
    """
    rows = []
    for held in progress(holds, "host cores"):
        for seed in range(seeds):
            asked = desk(rates, contention, cores, held, count, seed)
            shared = replace(contention, cores=float(cores))
            free = replace(asked, fleet=replace(asked.fleet, host_cores=np.inf))
            for label, mine in (("counted", asked), ("ignored", free)):
                foreseen = simulate(mine, policies.policy("hybrid"), contention=replace(contention, cores=np.inf))
                real = simulate(mine, policies.policy("hybrid"), contention=shared)
                rows.append({"host_cores": held, "seed": seed, "cores": label,
                             "foreseen_s": float(foreseen.schedule["end_s"].max()),
                             "makespan_s": float(real.schedule["end_s"].max())})
    return pd.DataFrame(rows)
