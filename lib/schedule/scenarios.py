"""Scenarios of ``params/scenarios.yaml``: kinds of jobs, and devices with assumed watts and prices.

times = step_times([scenario("mixed")])        # one row per job class and device
draw = job_mix(times, scenario("mixed"), 120)  # a function of a seed
problem = draw(0)                              # 120 jobs on the devices of the scenario
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pandas as pd

from lib.config import definitions
from lib.config.definitions import JobClass, Scenario
from lib.measure import archive
from lib.predict import registry, steps
from lib.predict.advice import advise
from lib.predict.networks import step
from lib.progress import track
from lib.schedule import job_mixes
from lib.schedule.problem import Fleet, Problem
from lib.work.run_config import RunConfig

PHASE_COLUMNS = [f"{name}_ms" for name in step.STEP_PHASES]
_TIMES = ["step_ms", "low_ms", "high_ms"]
_DIGITS = 6  # of a time: the last digits depend on the processor, and schedules depend on them
_STANDARD_DEVIATIONS = 1.645  # from the median to either end of a 90 % interval


def job_classes(names: Collection[str] = ()) -> list[JobClass]:
    """Return the named ``kinds`` of params/scenarios.yaml; without names all in fp32."""
    kinds = definitions.load_scenarios()[0]
    fp32 = [kind for kind in kinds.values() if kind.dtype == "fp32"]
    return [kinds[name] for name in names] or fp32


def step_times(scenarios: Iterable[Scenario], reference: str = "") -> pd.DataFrame:
    """Return the step time of each job class of the scenarios on each of their devices.

    Columns: ``job_class, device, memory_mb, source, step_ms, low_ms, high_ms`` and, for predicted
    training steps, PHASE_COLUMNS. ``source`` is measured (then without an interval), does not fit
    (then without a time), or where the prediction comes from. The CPU is that of the ``reference``
    machine.
    """
    devices, classes = defaultdict(dict), defaultdict(dict)  # by dtype
    for scenario in scenarios:
        for kind in job_classes(scenario.kinds):
            devices[kind.dtype] |= dict.fromkeys(scenario.devices)
            classes[kind.dtype][kind.id] = kind
    return pd.concat([class_times(devices[dtype], kinds.values(), reference)
                      for dtype, kinds in classes.items()], ignore_index=True)


def class_times(devices: Iterable[str], classes: Iterable[JobClass],
                reference: str = "") -> pd.DataFrame:
    """Return the rows of ``step_times`` for job classes of one dtype on ``cpu`` and GPUs.

    Raises InputError for a device without a model.
    """
    models = registry.machine_files(archive.machine_folder(reference)) if reference else {}
    if ("cpu", "fp32") in models:
        devices = [f"cpu@{reference}" if name == "cpu" else name for name in devices]
    classes = list(classes)
    predictors = registry.for_devices(devices, classes[0].dtype, shipped=True)
    profiled = steps.measured_ms(archive.runs("replay", reference))
    rows = []
    for kind in track(classes, "job classes"):
        captured = advise.CapturedQuery(
            RunConfig(kind.model, kind.batch_size, mode=kind.mode, dtype=kind.dtype))
        measured_ms, asked = np.nan, predictors
        if kind.mode == "train":
            measured_ms = profiled.get((kind.model, captured.batch_size), np.nan)
        if np.isfinite(measured_ms):
            asked = [predictor for predictor in predictors if predictor.device_type != "cpu"]
        if len(asked) < len(predictors):
            rows.append({"job_class": kind.id, "device": "cpu", "source": "measured",
                         "step_ms": measured_ms})
        answers = advise.predictions([advise.Answer(captured, predictor) for predictor in asked])
        rows += [_row(kind, answer) for answer in answers.to_dict("records")]
    columns = ["job_class", "device", "memory_mb", "source", *_TIMES, *PHASE_COLUMNS]
    table = pd.DataFrame(rows, columns=columns)
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
    """Return one column of ``step_times`` (job classes, device types)."""
    classes = [kind.id for kind in job_classes(scenario.kinds)]
    table = times.pivot_table(index="job_class", columns="device", values=column, aggfunc="first",
                              dropna=False)
    return table.loc[classes, list(scenario.devices)]


def time_spread(times: pd.DataFrame, scenario: Scenario) -> np.ndarray:
    """Return the standard deviation of log times (classes, types) by intervals; 0 if measured."""
    low, high = by_device(times, scenario, "low_ms"), by_device(times, scenario, "high_ms")
    return np.nan_to_num(np.log((high / low).to_numpy(float)) / (2 * _STANDARD_DEVIATIONS))


def fleet(scenario: Scenario) -> Fleet:
    """Return the devices of a scenario: memory by the vendors, assumed watts and prices."""
    vendors, groups = definitions.load_devices(), scenario.devices
    stated = {name: [getattr(group, name) for group in groups.values()]
              for name in ("idle_w", "busy_w", "price_per_hour")}
    memory_mb = [vendors[name].memory_mb if name in vendors else np.nan for name in groups]
    counts = {name: group.count for name, group in groups.items()}
    return Fleet.from_counts(counts, memory_mb=memory_mb, **stated)


def job_mix(times: pd.DataFrame, scenario: Scenario, count: int) -> Callable[..., Problem]:
    """Return a function ``(seed, load=0.0) -> Problem`` that draws ``count`` jobs of a scenario.

    With a ``load`` the jobs arrive over time, as a Poisson process.
    """
    rates = (1e3 / by_device(times, scenario)).fillna(0.0)
    devices, span_s = fleet(scenario), (scenario.shortest_s, scenario.longest_s)
    memory_mb = times.groupby("job_class")["memory_mb"].max()[rates.index].fillna(0.0)

    def draw(seed: int, load: float = 0.0) -> Problem:
        memory = memory_mb.to_numpy(float)
        return job_mixes.draw(rates, devices, count, seed, load, span_s, memory)
    return draw
