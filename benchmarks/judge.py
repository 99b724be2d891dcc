"""How right answers for GPUs are on modules that no model was taught: KernelBench's, in fp32, eager.

Beside them stands a soft roofline at 70 % of the stated peaks plus 27.6 us an operator.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib import paths
from lib.config.definitions import load_devices
from lib.predict import registry
from lib.predict.advice.query import Answer
from lib.predict.networks.work import Work
from lib.predict.operators.chip import Chip
from lib.predict.published import kernelbench
from lib.progress import track
from lib.work.graph import counts
from lib.work.graph.ops import Graph
from lib.work.run_config import RunConfig

FOLDER = paths.ROOT.parent / "shared" / "data" / "kernelbench"
MOST = 1_000  # modules
TOY = {"MOST": 3}
_PEAK_SHARE, _LAUNCH_MS = 0.7, 0.0276  # of the simple rule
_SMALL_MS = 0.2  # below it a time is mostly launches


class CapturedGraph:
    """A graph in the place of a captured question."""

    dimensions = 0  # no image network: whole networks of a card do not answer

    def __init__(self, graph: Graph):
        empty = replace(graph, made=({},) * len(graph.ops), freed=((),) * len(graph.ops))
        self.config = RunConfig(batch_size=2)
        self._work = Work.of(empty, "infer", 2, "cuda")

    def scaled(self, *_: object) -> Work:
        """Return the work, whatever the batch."""
        return self._work


def soft_roofline_ms(graph: Graph, chip: Chip) -> float:
    """Return the ms of a graph by the simple rule."""
    total = 0.0
    for op in filter(counts.is_work, graph.ops):
        compute = counts.matrix_flops(op) / chip.flops_per_ms
        move = counts.compulsory_bytes(op) / chip.bytes_per_ms
        total += (compute ** 3 + move ** 3) ** (1 / 3) / _PEAK_SHARE + _LAUNCH_MS
    return total


def judged(most: int) -> pd.DataFrame:
    """Return the labels of at most so many modules with ``predicted_ms, low_ms, high_ms, rule_ms`` of each."""
    modules = dict(list(kernelbench.modules(FOLDER).items())[:most])
    labels = kernelbench.labels(FOLDER).query("mode == 'eager'")
    labels = labels[labels["module"].isin(modules)]
    captured = {name: CapturedGraph(module.graph) for name, module in track(modules.items(), "modules")}
    devices, rows = load_devices(), []
    for device, part in track(list(labels.groupby("device")), "cards"):
        predictor, chip = registry.predictor(device, "fp32"), Chip.of(devices[device], "fp32")
        answers = {name: Answer(captured[name], predictor).estimate.times for name in part["module"].unique()}
        rules = {name: soft_roofline_ms(modules[name].graph, chip) for name in answers}
        times = pd.DataFrame(list(part["module"].map(answers)), part.index)
        rows.append(part.join(times).assign(rule_ms=part["module"].map(rules)))
    return pd.concat(rows)


def scores(table: pd.DataFrame) -> dict[str, float]:
    """Return the errors of judged labels: factors are exp of the mean of the absolute log of the ratio."""
    ratio = np.log(table["predicted_ms"] / table["mean_ms"])
    inside = table["mean_ms"].between(table["low_ms"], table["high_ms"])
    return {"n": len(table), "median %": 100 * np.abs(np.expm1(ratio)).median(),
            "off by 2x %": 100 * (ratio.abs() > np.log(2)).mean(), "inside %": 100 * inside.mean(),
            "high/low": (table["high_ms"] / table["low_ms"]).median(), "factor": np.exp(ratio.abs().mean()),
            "factor of the rule": np.exp(np.log(table["rule_ms"] / table["mean_ms"]).abs().mean())}


def scored(table: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of judged labels: together, of times that are more than launches, by level, by board."""
    parts = {"all": table, f"at least {_SMALL_MS} ms": table[table["mean_ms"] >= _SMALL_MS]}
    parts |= {f"level {level}": part for level, part in table.groupby("level")}
    parts |= dict(list(table.groupby("board")))
    return pd.DataFrame({name: scores(part) for name, part in parts.items()}).T


def main() -> None:
    """Print the scores."""
    if FOLDER.is_dir():
        print(scored(judged(MOST)).round(2).to_string())
    else:
        print(f"   skipped: there is no {FOLDER}")
