"""Calibration of a CPU that nobody measured: the nearest model, fine-tuned by measured points in about two minutes."""

from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from lib import locks, paths, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import machine
from lib.measure.operators import aggregate, sweep
from lib.measure.reference_kernel import ProcessorSpeed
from lib.measure.statistics import is_usable
from lib.predict import calibrate_networks, registry, transfer_cpu
from lib.predict.calibrate_networks import LEAST_NETWORKS, Networks
from lib.predict.network_training import Works
from lib.predict.operators import inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fine_tuning import farthest_first, fine_tuned
from lib.predict.operators.validation import worse
from lib.predict.scores import score
from lib.predict.transfer_cpu import CALIBRATED
from lib.work.graph import spaces
from lib.work.graph.spaces import Config

_POOL, _POINTS_A_SECOND, _ROUNDS, _LEAST = 900, 2.5, 3, 20
_SHORTEST_S, _LONGEST_S = 10, 1_000_000
_NETWORKS = 0.4  # share of a CPU's budget for networks
_TRAINING = 0.8  # share of the points that fine-tune; the rest, drawn at random, validate


@dataclass(frozen=True)
class Calibrated:
    """A calibrated model, its file, and its errors on random held-out points before and after."""

    path: Path
    model: CostModel
    points: int
    before: dict[str, float]
    after: dict[str, float]
    networks: Networks | None = None  # in fp32


def _pool(dtype: str) -> tuple[list[Config], pd.DataFrame]:
    """Draw configurations from the spaces of ``params/sweeps.yaml``; return them and their rows."""
    sweeps, configs, rows = spaces.load_sweeps(), [], []
    for config, ops in islice(spaces.sample_families(list(sweeps.spaces), sweeps, 0, dtype), _POOL):
        flops, moved = spaces.work(ops)
        configs.append(config)
        rows.append({"op": config.op, **dict(config.parameters), "pass": config.passes, "flops": flops, "bytes": moved})
    return configs, pd.DataFrame(rows)


def choose(rows: pd.DataFrame, count: int) -> tuple[list[int], list[int]]:
    """Return which rows to measure: distant ones of each part to fine-tune, and random ones to validate."""
    tuning, validating = [], np.random.default_rng(0).permutation(len(rows))[:int(count * (1 - _TRAINING))].tolist()
    rest = rows.drop(index=validating)
    for _, part in inputs.by_part(rest, None):
        _, x = inputs.frames(part, None)
        share = max(4, round(count * _TRAINING * len(part) / len(rest)))
        tuning += part.index[farthest_first(x.to_numpy(), share)].tolist()
    return tuning, validating


def calibrate(dtype: str = "fp32", budget_s: float = 120.0) -> Calibrated:
    """Measure chosen points on this machine's CPU, fine-tune the nearest model, and save it for this machine.

    In fp32 the budget also measures a few whole networks, which calibrate the composition. Raises InputError where there is no
    model to start from, and if networks are predicted worse than before.
    """
    if not _SHORTEST_S <= budget_s <= _LONGEST_S:
        raise InputError(f"budget_s {budget_s:g} is too short to measure anything, or has no end; give {_SHORTEST_S} s to "
                         f"{_LONGEST_S:,} s (120 is usual)")
    bases, path = _bases(dtype), registry.path_of(registry.cpu_here(), dtype)
    with locks.writer(path):  # what cannot be written is not measured, nor what another call is writing
        return _calibrated(bases, dtype, budget_s, path)


def _calibrated(bases: list[CostModel], dtype: str, budget_s: float, path: Path) -> Calibrated:
    """Do what ``calibrate`` says, with the models to start from, and write the file."""
    name = f"calibration_{machine.name()}_{dtype}_{store.utc_now()[:19].replace(':', '')}"
    sweeps, validating, visited, works = _measured(bases[0], dtype, budget_s, name)
    training, held_out, speed = _points(sweeps, validating)
    base = min(bases, key=lambda model: np.log(training["latency_ms"] / model.predict(training)["predicted_ms"]).abs().median())
    model = fine_tuned(base, training)
    scores = [score(held_out["latency_ms"], candidate.predict(held_out)["predicted_ms"]) for candidate in (base, model)]
    if worse(*scores):  # keep the base's answers
        model = base.borrowed()
        scores = [scores[0]] * 2
    networks = None
    if works:
        usable, speed = calibrate_networks.at_usual_speed(pd.concat(visited, ignore_index=True), speed)
        networks = calibrate_networks.calibrate(model, base, usable, works)
    if networks and networks.worse:
        raise InputError(f"the calibration did not help: networks measured end to end err by {networks.after['mape']:.0f} % "
                         f"after it, by {networks.before['mape']:.0f} % before; nothing is saved. The machine was busy, or "
                         f"differently so, while operators and networks were measured; they are in {paths.SWEEPS / name}_* "
                         f"and {paths.NETWORKS / name}_*")
    model.device, _ = registry.key_of(path)
    model.facts = {**base.facts, **machine.ids(), CALIBRATED: base.device, "calibrated_utc": store.utc_now(),
                   "points": len(training), "sweeps": [], "devices": ["cpu"],
                   "processor_speed": asdict(speed), "networks": networks.after if networks and networks.count else {}}
    return Calibrated(model.save(path), model, len(training), *scores, networks)


def _measured(base: CostModel, dtype: str, budget_s: float, name: str) -> tuple[
        list[aggregate.Sweep], set[str], list[pd.DataFrame], Works]:
    """Measure operators, and networks in fp32 before, between and after parts of them, in a budget.

    Returns the sweeps, the keys of the operators that validate, the networks of each moment, and their work.
    """
    networks_s = budget_s * _NETWORKS if dtype == "fp32" else 0.0
    cases, works = calibrate_networks.choose(base, networks_s) if networks_s else ([], {})
    operators_s, parts = budget_s - networks_s, len(calibrate_networks.MOMENTS) - 1 if cases else 1
    (configs, validating), sweeps, visited = _chosen(base, dtype, operators_s), [], []
    for moment in range(parts + 1):
        visited += [calibrate_networks.measure(cases, moment, networks_s, name)] if cases else []
        if moment < parts:
            p = SweepParams(source="measure", op="all", grid="", device="cpu", budget_s=operators_s / parts, count=0,
                            rounds=_ROUNDS, visit_ms=16, energy_s=0, shard="0/1", threads=0,
                            name=f"{name}_{moment}", dtype=dtype, **_timing(base))
            sweeps.append(aggregate.read(sweep.measure_sweep(p, chosen=configs[moment::parts])))
    return sweeps, validating, visited, works


def _chosen(base: CostModel, dtype: str, budget_s: float) -> tuple[list[Config], set[str]]:
    """Return operators to measure, in random order, and the keys of those that validate."""
    configs, rows = _pool(dtype)
    configs = [replace(config, **_timing(base)) for config in configs]
    tuning, validating = choose(rows, int(budget_s * _POINTS_A_SECOND))
    order = np.random.default_rng(0).permutation([*tuning, *validating])  # so that a slow machine measures both kinds
    return [configs[row] for row in order], {configs[row].key for row in validating}


def _points(sweeps: list[aggregate.Sweep], validating: set[str]) -> tuple[pd.DataFrame, pd.DataFrame, ProcessorSpeed]:
    """Return usable rows to fine-tune and to validate, at the processor's usual speed, and that speed.

    Raises InputError for too few rows.
    """
    table, visits = (pd.concat([getattr(swept, name) for swept in sweeps], ignore_index=True) for name in ("table", "visits"))
    speed = ProcessorSpeed.from_visits(visits)
    reference_ms = table["config"].map(visits.groupby("config")["yardstick_ms"].median()).astype(float)
    table = table.assign(latency_ms=speed.at_usual_ms(table["latency_ms"], reference_ms))
    usable = table[is_usable(table)]
    held_out = usable[usable["config"].isin(validating)]
    training = usable.drop(index=held_out.index)
    if len(training) < _LEAST or len(held_out) < 2:
        raise InputError(f"only {len(usable)} of {len(table)} measured points are usable, {_LEAST} or more are needed to "
                         "fine-tune, and two more to validate: the machine is busy, or budget_s too short; the points are in "
                         f"{' and '.join(str(swept.folder) for swept in sweeps)}")
    return training, held_out, speed


def _timing(base: CostModel) -> dict[str, str]:
    """Return how the rows of a model were timed, as a new row is to be."""
    return {name: base.facts.get(name, usual) for name, usual in (("cache", "warm"), ("latency_type", "kernel"))}


def _bases(dtype: str) -> list[CostModel]:
    """Return the models to start from: reference CPUs scaled to this one, nearest first.

    They count only if they were timed as the nearest one was.
    """
    references = registry.reference_cpus(dtype)
    if not references:
        return [registry.shipped_cpu(dtype)]  # its error lists the models
    here = transfer_cpu.host()
    here = transfer_cpu.measure_ceilings() if here is None or here.doubtful else here
    models = transfer_cpu.transferred(references, here)
    return [model for model in models if _timing(model) == _timing(models[0])]


def summary(result: Calibrated) -> str:
    """Return the result of a calibration in words."""
    source, scaling = result.model.facts[CALIBRATED], result.model.scaling
    text = (f"{result.path}: {source}{f' (scaled: {scaling})' if scaling else ''} fine-tuned by {result.points} points; on "
            f"{result.after['n']} random held-out points MAPE {result.before['mape']:.1f} % before, "
            f"{result.after['mape']:.1f} % after (median {result.before['median']:.1f} -> {result.after['median']:.1f} %)")
    if result.networks is None:
        return text
    if result.networks.count < LEAST_NETWORKS:
        return text + (f"; of the networks measured end to end {result.networks.count} are usable, two or more are needed: the "
                       f"composition stays that of {source}")
    before, after = result.networks.before, result.networks.after
    return text + (f"; {result.networks.count} networks end to end ({after['n']} cases), each predicted by others at other "
                   f"moments: MAPE {before['mape']:.1f} % before (bias {before['bias']:+.1f} %), {after['mape']:.1f} % after "
                   f"(bias {after['bias']:+.1f} %)")
