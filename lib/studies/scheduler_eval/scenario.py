"""How long a step of each job class takes on each device type of a scenario: measured where it was, else predicted."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib.config import definitions
from lib.config.definitions import JobClass, Scenario
from lib.measure import archive
from lib.predict import registry, steps
from lib.predict.advice import advise
from lib.predict.networks import step
from lib.progress import track
from lib.schedule import job_mixes, portable, problem_files
from lib.schedule.problem import Fleet, JobEnergy, Problem

_HALF = 1.645  # standard deviations in half of a 90 % interval
PHASE_COLUMNS = tuple(f"{name}_ms" for name in step.STEP_PHASES)
_TIMES = ["step_ms", "low_ms", "high_ms"]
_DIGITS = 6  # of a time: the last ones of a prediction are those of the processor that made it, and schedules hang on them


@dataclass(frozen=True)
class StepTimes:
    """``table``: rows ``job_class, device, step_ms, low_ms, high_ms, source, memory_mb`` and PHASE_COLUMNS, one a pair.

    ``source`` is measured, as ``advise`` says, or does not fit (then there is no time). Measured times have no interval and no
    parts; those of a predicted training step are in ms.
    """

    table: pd.DataFrame

    def of(self, scenario: Scenario) -> "StepTimes":
        """Return the times of the job classes of a scenario."""
        return StepTimes(self.table[self.table["job_class"].isin([kind.id for kind in job_classes(scenario.kinds)])])

    def wide(self, column: str, devices: Iterable[str]) -> pd.DataFrame:
        """Return one column as a row a class and a column a device."""
        return self.table.pivot_table(index="job_class", columns="device", values=column, aggfunc="first", sort=False,
                                      dropna=False)[list(devices)]

    def rates(self, devices: Iterable[str]) -> pd.DataFrame:
        """Return steps per second, a row a class and a column a device; 0 where it does not fit."""
        return (1e3 / self.wide("step_ms", devices)).fillna(0.0)

    def spread(self, devices: Iterable[str]) -> np.ndarray:
        """Return the spread of each time (classes, devices) in log time, as its interval says; 0 where it was measured."""
        low, high = self.wide("low_ms", devices), self.wide("high_ms", devices)
        return np.nan_to_num(portable.log((high / low).to_numpy(float)) / (2 * _HALF))

    def memory_mb(self) -> np.ndarray:
        """Return what a job of each class needs, in MB."""
        return self.table.groupby("job_class", sort=False)["memory_mb"].first().to_numpy(float)


def job_classes(names: Collection[str] = ()) -> list[JobClass]:
    """Return the named ``kinds`` of params/scenarios.yaml; without names all in fp32."""
    kinds = definitions.load_scenarios()[0]
    return [kinds[name] for name in names] or [kind for kind in kinds.values() if kind.dtype == "fp32"]


def times_of(scenarios: Iterable[Scenario], reference: str = "") -> StepTimes:
    """Return the step times of the job classes of scenarios on their devices."""
    devices: dict[str, dict[str, None]] = {}  # by dtype
    classes: dict[str, dict[str, JobClass]] = {}
    for scenario in scenarios:
        for kind in job_classes(scenario.kinds):
            devices.setdefault(kind.dtype, {}).update(dict.fromkeys(scenario.devices))
            classes.setdefault(kind.dtype, {})[kind.id] = kind
    tables = [step_times(devices[dtype], kinds.values(), reference).table for dtype, kinds in classes.items()]
    return StepTimes(pd.concat(tables, ignore_index=True))


def step_times(devices: Iterable[str], classes: Iterable[JobClass], reference: str = "") -> StepTimes:
    """Return the step times of job classes, of one dtype, on ``cpu`` and GPUs.

    A training step has all of its parts on every device: loader, copy, forward, backward and optimizer. The CPU is the
    reference machine's, by its own model where one was trained. Raises InputError for a device without a model.
    """
    models = registry.machine_files(archive.machine_folder(reference)) if reference else {}
    devices = [f"cpu@{reference}" if name == "cpu" and ("cpu", "fp32") in models else name for name in devices]
    classes = list(classes)
    predictors = registry.for_devices(devices, classes[0].dtype, shipped=True)
    profiled = steps.measured_ms(archive.runs("replay", reference))
    rows = []
    for job_class in track(classes, "job classes"):
        query = advise.CapturedQuery(advise.Query(job_class.model, job_class.batch_size, mode=job_class.mode,
                                                  dtype=job_class.dtype))
        answers = advise.predictions([advise.Answer(query, predictor) for predictor in predictors])
        profiled_ms = profiled.get((job_class.model, query.batch_size), np.nan) if job_class.mode == "train" else np.nan
        rows += [_row(job_class, answer, profiled_ms) for answer in answers.to_dict("records")]
    table = pd.DataFrame(rows, columns=["job_class", "device", "memory_mb", "source", *_TIMES, *PHASE_COLUMNS])
    return StepTimes(table.assign(**table[_TIMES].map(f"{{:.{_DIGITS}g}}".format).astype(float)))


def _row(job_class: JobClass, answer: dict, profiled_ms: float) -> dict:
    device = answer["device"].partition("@")[0]
    measured_ms = profiled_ms if device == "cpu" and np.isfinite(profiled_ms) else answer["measured_ms"]
    if not answer["fits"]:
        known = {"source": "does not fit"}
    elif np.isfinite(measured_ms):
        known = {"source": "measured", "step_ms": measured_ms}
    else:
        known = {**answer, "step_ms": answer["predicted_ms"]}
    return {**known, "job_class": job_class.id, "device": device, "memory_mb": answer["memory_mb"]}


def fleet(scenario: Scenario) -> Fleet:
    """Return the devices of a scenario, with the vendors' memory sizes and the scenario's assumed watts and prices."""
    vendors, groups = definitions.load_devices(), scenario.devices
    stated = {name: [getattr(group, name) for group in groups.values()] for name in ("idle_w", "busy_w", "price_per_hour")}
    return Fleet.from_counts({name: group.count for name, group in groups.items()}, **stated,
                             memory_mb=[vendors[name].memory_mb if name in vendors else np.nan for name in groups])


def step_energy(times: StepTimes, scenario: Scenario, path: str = "") -> JobEnergy:
    """Return the joules of a step of each job class of a scenario on each device type, NaN not known, and how they are known.

    Those of ``path`` (``problem_files.read_energy``, a row a job class), else the scenario's watts times the step's time.
    InputError names what is wrong in the file, and job classes that it lacks.
    """
    step_s = times.of(scenario).wide("step_ms", scenario.devices) / 1e3
    if path:
        return problem_files.read_energy(Path(path), list(scenario.devices), list(step_s.index), f"the scenario {scenario.id}")
    return JobEnergy(step_s.to_numpy(float) * fleet(scenario).busy_w, ("assumed",) * len(step_s))


def draw(times: StepTimes, scenario: Scenario, count: int, seed: int, load: float = 0.0, energy: str = "") -> Problem:
    """Draw a problem of a scenario: ``count`` jobs over its classes; with ``load`` they arrive over time.

    Jobs take the joules that the CSV ``energy`` states of a step (``step_energy``); empty: the watts of their devices.
    """
    shared = times.of(scenario)
    rates = shared.rates(scenario.devices)
    problem = job_mixes.draw(rates, fleet(scenario), count, seed, load, (scenario.shortest_s, scenario.longest_s),
                             shared.memory_mb())
    if not energy:
        return problem
    steps, kinds = step_energy(times, scenario, energy), problem.jobs.job_class
    steps_done = np.where(np.isfinite(problem.actual_s), problem.actual_s, np.nan) * rates.to_numpy(float)[kinds]
    return replace(problem, energy=JobEnergy(steps.joules[kinds] * steps_done, tuple(steps.sources[kind] for kind in kinds)))
