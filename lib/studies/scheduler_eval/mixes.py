"""What 07 evaluates: the mixes of the scenarios and of published throughputs, and the results as people read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config import definitions
from lib.config.definitions import Scenario
from lib.measure.training.summary import PHASES_MS
from lib.progress import track
from lib.report.style import renamed
from lib.schedule import bounds, gavel, job_mixes
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval import comparison, scenario
from lib.studies.scheduler_eval.scenario import PHASE_COLUMNS, StepTimes

NAMES = ("cpu-only gpu-only fastest first-come by-size earliest-finish longest-first shortest-first affinity matching "
         "hybrid").split()
MAIN = ("fastest", "first-come", "earliest-finish", "longest-first", "hybrid")
SPEEDS = ("first-come", "longest-first", "hybrid")
PUBLISHED = ((200, 4), (1000, 36))  # jobs, devices of each type


@dataclass(frozen=True)
class Mixes:
    """Scenarios with their step times, and rates of published jobs where they were imported (None: they were not)."""

    times: StepTimes
    scenarios: tuple[Scenario, ...]
    published: pd.DataFrame | None

    def of_scenarios(self, count: int) -> dict[str, comparison.Mix]:
        """Return a mix of ``count`` jobs for each scenario."""
        return {mix.id: partial(scenario.draw, self.times, mix, count) for mix in self.scenarios}

    def of_published(self) -> dict[str, comparison.Mix]:
        """Return the mixes of published jobs, none where they were not imported."""
        if self.published is None:
            return {}
        return {f"{count} jobs, {devices} of each": partial(gavel.mix, self.published, count, devices)
                for count, devices in PUBLISHED}

    @property
    def widest(self) -> Scenario:
        """Return the scenario with the most device types."""
        return max(self.scenarios, key=lambda scenario: len(scenario.devices))

    @property
    def widest_times(self) -> StepTimes:
        """Return the times of the widest scenario's job classes."""
        return self.times.of(self.widest)

    def one(self, count: int) -> comparison.Mix:
        """Return the mix of the widest scenario; with ``load`` its jobs arrive over time, with ``energy`` they take joules."""
        return partial(scenario.draw, self.times, self.widest, count)

    @property
    def spread(self) -> np.ndarray:
        """Return the spread of the widest scenario's times (classes, types) in log time."""
        return self.widest_times.spread(self.widest.devices)


def load(names: Sequence[str], reference: str = "") -> Mixes:
    """Return the named scenarios with their step times; InputError for one that is not there."""
    scenarios = tuple(definitions.scenario(name) for name in names)
    return Mixes(scenario.times_of(scenarios, reference), scenarios, published())


def published() -> pd.DataFrame | None:
    """Return the rates of published single-device jobs, None where they were not imported."""
    path = paths.IMPORTED / "gavel" / gavel.FILE
    return gavel.single(store.read(path, "throughputs")) if path.exists() else None


def step_table(times: StepTimes) -> pd.DataFrame:
    """Return step times as people read them: ms a step on each device, with how it is known."""
    def cell(row) -> str:
        if not np.isfinite(row.step_ms):
            return row.source
        how = row.source if np.isnan(row.low_ms) else f"{row.source}, {row.low_ms:.3g} to {row.high_ms:.3g}"
        return f"{row.step_ms:.3g} ({how})"

    shown = StepTimes(times.table.assign(cell=[cell(row) for row in times.table.itertuples()]))
    devices = sorted(times.table["device"].unique(), key=lambda device: device != "cpu")
    return shown.wide("cell", devices).fillna("").rename_axis(columns=None).reset_index()


def part_table(times: StepTimes) -> pd.DataFrame:
    """Return the parts of each predicted training step in ms, and the share of it that is neither forward nor backward."""
    rows = times.table.dropna(subset=list(PHASE_COLUMNS)).eval("beside = 100 * (1 - (forward_ms + backward_ms) / step_ms)")
    return renamed(rows, {"job_class": "job_class", "device": "device", "step_ms": "step",
                          **dict(zip(PHASE_COLUMNS, PHASES_MS.values(), strict=True)), "beside": "beside the passes %"})


def energy_table(mixes: Mixes, energy: str = "") -> pd.DataFrame:
    """Return joules of a step of each job class on each device type of the widest scenario, and how they are known.

    ``energy`` is the CSV that states them; empty: watts times time.
    """
    step_ms = mixes.widest_times.wide("step_ms", mixes.widest.devices).rename_axis(columns=None)
    cells = step_ms.isna().map({True: "does not fit", False: "not known"}.get)
    for path in ("", energy):  # what is stated stands over what follows from watts
        steps = scenario.step_energy(mixes.times, mixes.widest, path)
        joules = pd.DataFrame(steps.joules, step_ms.index, step_ms.columns)
        texts = joules.map("{:.3g} (".format).add(pd.Series(steps.sources, step_ms.index) + ")", axis=0)
        cells = cells.mask(joules.notna() & step_ms.notna(), texts)
    return cells.reset_index()


def headroom_table(results: pd.DataFrame) -> pd.DataFrame:
    """Return by mix what could be won over the best simple rule, and what the main policies win of it."""
    mean = results.pivot_table(index="mix", columns="policy", values=["room", "headroom", "ratio", "decide_s"], sort=False)
    won = {f"{name}: won of it %": 100 * mean["headroom"][name] for name in ("earliest-finish", "longest-first", "hybrid")}
    return pd.DataFrame({"could be saved %": 100 * mean["room"]["hybrid"], **won, "hybrid / bound": mean["ratio"]["hybrid"],
                         "hybrid decides in ms": 1e3 * mean["decide_s"]["hybrid"]}).reset_index()


def few(mixes: Mixes) -> tuple[dict[str, pd.DataFrame], dict[str, str], float]:
    """Return schedules by policy of forty jobs of the widest scenario, the class of each job, and the bound in s."""
    problem = mixes.one(40)(0)
    bound_s = bounds.makespan_bound(problem)
    classes = mixes.widest_times.table["job_class"].unique()[problem.jobs.job_class]
    schedules = {name: simulate(problem, registry.policy(name)).schedule for name in ("fastest", "earliest-finish", "hybrid")}
    return ({f"{name}: {schedule['end_s'].max() / bound_s:.2f} times the bound": schedule
             for name, schedule in schedules.items()}, dict(zip(problem.jobs.ids, classes, strict=True)), bound_s)


def speed(mixes: Mixes, scale: int) -> pd.DataFrame:
    """Return simulated jobs a second and the time of a decision by policy and number of jobs, a device for each hundred."""
    parts = []
    rates = mixes.widest_times.rates(mixes.widest.devices)
    comparison.speed(mixes.one(10)(0), SPEEDS, compiled=True)  # compiled by now, or read from the cache
    for count in track(sorted({max(500, scale // 100), max(500, scale // 10), scale}), "speed"):
        fleet = Fleet.from_counts(dict.fromkeys(rates.columns, max(1, count // 100 // rates.shape[1])))
        problem = job_mixes.draw(rates, fleet, count, 0)
        again = comparison.speed(problem, SPEEDS[:2], compiled=True)
        parts += [comparison.speed(problem, SPEEDS), again.assign(policy=again["policy"] + ", compiled")]
    return pd.concat(parts, ignore_index=True)


def wide(table: pd.DataFrame, rows: str, columns: str, values: str) -> pd.DataFrame:
    """Return means over seeds, a row a value of one column and a column a value of another."""
    if table.empty:
        return table[[rows]]
    return table.pivot_table(index=rows, columns=columns, values=values, sort=False).rename_axis(columns=None).reset_index()


def speed_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the time of a decision at the largest size."""
    shown = table.query("jobs == jobs.max()").dropna(subset="decide_p99_us")
    return shown.drop(columns=["jobs_per_s", "refine_s"])
