"""Scenarios of ``params/scenarios.yaml``: step times of their job classes, and job mixes drawn from them.

    times = step_times([scenario("mixed")])        # one row per job class and device, measured or predicted
    draw = job_mix(times, scenario("mixed"), 120)  # a function of a seed
    problem = draw(0)                              # 120 jobs on the devices of the scenario

A scenario names kinds of jobs and a fleet of devices, with assumed watts and prices.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
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
from lib.schedule import job_mixes, problem_files
from lib.schedule.problem import Fleet, JobEnergy, Problem

PHASE_COLUMNS = [f"{name}_ms" for name in step.STEP_PHASES]
_TIMES = ["step_ms", "low_ms", "high_ms"]
_DIGITS = 6  # of a time: the last digits depend on the processor, and schedules depend on them
_STANDARD_DEVIATIONS = 1.645  # from the median to either end of a 90 % interval


def job_classes(names: Collection[str] = ()) -> list[JobClass]:
    """Return the named ``kinds`` of params/scenarios.yaml; without names all in fp32."""
    kinds = definitions.load_scenarios()[0]
    return [kinds[name] for name in names] or [kind for kind in kinds.values() if kind.dtype == "fp32"]


def step_times(scenarios: Iterable[Scenario], reference: str = "") -> pd.DataFrame:
    """Return the step time of each job class of the scenarios on each of their devices.

    Columns: ``job_class, device, memory_mb, source, step_ms, low_ms, high_ms`` and, for predicted training
    steps, PHASE_COLUMNS. ``source`` is measured (then without an interval), does not fit (then without a
    time), or where the prediction comes from. The CPU is that of the ``reference`` machine.
    """
    devices: dict[str, dict[str, None]] = {}  # by dtype
    classes: dict[str, dict[str, JobClass]] = {}
    for scenario in scenarios:
        for kind in job_classes(scenario.kinds):
            devices.setdefault(kind.dtype, {}).update(dict.fromkeys(scenario.devices))
            classes.setdefault(kind.dtype, {})[kind.id] = kind
    return pd.concat([class_times(devices[dtype], kinds.values(), reference)
                      for dtype, kinds in classes.items()], ignore_index=True)


def class_times(devices: Iterable[str], classes: Iterable[JobClass], reference: str = "") -> pd.DataFrame:
    """Return the rows of ``step_times`` for job classes of one dtype on ``cpu`` and GPUs.

    A training step has the same parts on every device: loader, copy, forward, backward and optimizer.
    Raises InputError for a device without a model.
    """
    models = registry.machine_files(archive.machine_folder(reference)) if reference else {}
    devices = [f"cpu@{reference}" if name == "cpu" and ("cpu", "fp32") in models else name for name in devices]
    classes = list(classes)
    predictors = registry.for_devices(devices, classes[0].dtype, shipped=True)
    profiled = steps.measured_ms(archive.runs("replay", reference))
    rows = []
    for kind in track(classes, "job classes"):
        query = advise.CapturedQuery(
            advise.Query(kind.model, kind.batch_size, mode=kind.mode, dtype=kind.dtype))
        cpu_ms = profiled.get((kind.model, query.batch_size), np.nan) if kind.mode == "train" else np.nan
        asked = [predictor for predictor in predictors if predictor.device_type != "cpu" or np.isnan(cpu_ms)]
        if len(asked) < len(predictors):
            rows.append({"job_class": kind.id, "device": "cpu", "source": "measured", "step_ms": cpu_ms})
        answers = advise.predictions([advise.Answer(query, predictor) for predictor in asked])
        rows += [_row(kind, answer) for answer in answers.to_dict("records")]
    table = pd.DataFrame(rows, columns=["job_class", "device", "memory_mb", "source", *_TIMES, *PHASE_COLUMNS])
    return table.assign(**table[_TIMES].map(f"{{:.{_DIGITS}g}}".format).astype(float))


def _row(kind: JobClass, answer: dict) -> dict:
    if not answer["fits"]:
        known = {"source": "does not fit"}
    elif np.isfinite(answer["measured_ms"]):
        known = {"source": "measured", "step_ms": answer["measured_ms"]}
    else:
        known = {**answer, "step_ms": answer["predicted_ms"]}
    return {**known, "job_class": kind.id, "device": answer["device"].partition("@")[0],
            "memory_mb": answer["memory_mb"]}


def by_device(times: pd.DataFrame, scenario: Scenario, column: str = "step_ms") -> pd.DataFrame:
    """Return one column of ``step_times`` with one row per job class and one column per device type."""
    classes = [kind.id for kind in job_classes(scenario.kinds)]
    table = times.pivot_table(index="job_class", columns="device", values=column, aggfunc="first", dropna=False)
    return table.loc[classes, list(scenario.devices)]


def time_spread(times: pd.DataFrame, scenario: Scenario) -> np.ndarray:
    """Return the standard deviation of log times (classes, types) that the intervals state; 0 if measured."""
    low, high = by_device(times, scenario, "low_ms"), by_device(times, scenario, "high_ms")
    return np.nan_to_num(np.log((high / low).to_numpy(float)) / (2 * _STANDARD_DEVIATIONS))


def fleet(scenario: Scenario) -> Fleet:
    """Return the devices of a scenario, with the vendors' memory sizes and the assumed watts and prices."""
    vendors, groups = definitions.load_devices(), scenario.devices
    stated = {name: [getattr(group, name) for group in groups.values()]
              for name in ("idle_w", "busy_w", "price_per_hour")}
    memory_mb = [vendors[name].memory_mb if name in vendors else np.nan for name in groups]
    return Fleet.from_counts({name: group.count for name, group in groups.items()}, memory_mb=memory_mb, **stated)


def step_energy(times: pd.DataFrame, scenario: Scenario, path: str = "") -> JobEnergy:
    """Return the joules of one step of each job class on each device type, and how they are known.

    They come from the CSV ``path`` (``problem_files.read_energy``, one row per job class); without one they
    are the scenario's assumed watts times the step time. Raises InputError for a wrong file.
    """
    step_s = by_device(times, scenario) / 1e3
    if path:
        return problem_files.read_energy(Path(path), list(scenario.devices), list(step_s.index),
                                         f"the scenario {scenario.id}")
    return JobEnergy(step_s.to_numpy(float) * fleet(scenario).busy_w, ("assumed",) * len(step_s))


def job_mix(times: pd.DataFrame, scenario: Scenario, count: int, energy: str = "") -> Callable[..., Problem]:
    """Return a function ``(seed, load=0.0) -> Problem`` that draws ``count`` jobs of a scenario.

    With a ``load`` the jobs arrive over time, as a Poisson process. ``energy``: a CSV of joules per step.
    """
    rates = (1e3 / by_device(times, scenario)).fillna(0.0)
    devices, span_s = fleet(scenario), (scenario.shortest_s, scenario.longest_s)
    memory_mb = times.groupby("job_class")["memory_mb"].max()[rates.index].fillna(0.0).to_numpy(float)
    joules = step_energy(times, scenario, energy) if energy else None

    def draw(seed: int, load: float = 0.0) -> Problem:
        problem = job_mixes.draw(rates, devices, count, seed, load, span_s, memory_mb)
        if joules is None:
            return problem
        kinds = problem.jobs.job_class
        steps_done = np.where(np.isfinite(problem.actual_s), problem.actual_s, np.nan) * rates.to_numpy()[kinds]
        return replace(problem, energy=JobEnergy(joules.joules[kinds] * steps_done,
                                                 tuple(joules.sources[kind] for kind in kinds)))
    return draw
