"""The figure that sums a report up, drawn from nothing but the key numbers that its notebooks recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lib.config import definitions
from lib.report.plots import axes, label_rows
from lib.report.style import SERIES

Numbers = Mapping[str, Mapping[str, Mapping[str, Any]]]  # executed notebook -> name -> value, unit, tolerance

UNUSABLE, _VERDICT = "unusable", " verdict"  # a run's verdict, and the end of its name


@dataclass(frozen=True)
class Panel:
    """One question's answer: bars by label, in ``unit``; ``limit`` is the value that bounds them all, if there is one."""

    title: str
    unit: str
    bars: dict[str, float]
    digits: str
    limit: float | None = None
    logarithmic: bool = False

    @property
    def text(self) -> str:
        """Return the panel in words, for those who do not see it."""
        shown = ", ".join(f"{label} {value:{self.digits}}" for label, value in self.bars.items())
        return f"{self.title} ({self.unit}): {shown or 'nothing usable'}."


def series(numbers: Numbers, suffix: str) -> Iterator[tuple[str, float]]:
    """Yield (name without the suffix, value) of every key number whose name ends in ``suffix`` and that was measured.

    Numbers of a run that is unusable are left out.
    """
    of_runs = verdicts(numbers)
    for name, value in _ending(numbers, suffix):
        if not isinstance(value, str) and of_runs.get(name.strip()) != UNUSABLE:
            yield name.strip(), value


def verdicts(numbers: Numbers) -> dict[str, str]:
    """Return the verdict of each run that recorded one."""
    return dict(_ending(numbers, _VERDICT))


def _ending(numbers: Numbers, suffix: str) -> Iterator[tuple[str, Any]]:
    """Yield (name without the suffix, value) of every key number whose name ends in ``suffix``."""
    return ((name.removesuffix(suffix), item["value"]) for recorded in numbers.values() for name, item in recorded.items()
            if name.endswith(suffix))


def fleet(scenario: str) -> str:
    """Return what the note of a scenario calls its fleet, such as "a lab"; the scenario's name where it has no note."""
    definition = definitions.load_scenarios()[1].get(scenario)
    return definition.note.partition(":")[0] if definition else scenario


def over_bound(saved_pct: float) -> float:
    """Return how many times the lower bound a time is of which at most ``saved_pct`` percent could be saved."""
    return 1 / (1 - saved_pct / 100)


def workload(run: str) -> str:
    """Return a run such as W1_pathmnist_simple_cnn_cpu_fp32 as "W1 simple_cnn, pathmnist 28", and how it ran elsewhere."""
    name, _, how = run.partition("_")
    if (trained := definitions.workloads().get(name)) is None:
        return run
    how = how.removeprefix(f"{trained.dataset}_{trained.model}").removesuffix("cpu_fp32").replace("_", " ").strip()
    return f"{name} {trained.model}, {trained.dataset} {trained.size}" + (f", {how}" if how else "")



def panels(numbers: Numbers) -> tuple[Panel, ...]:
    """Return the four answers: measured, explained, predicted, placed."""
    rates = {workload(name): value for name, value in series(numbers, " throughput")}
    shares = {workload(name): value for name, value in series(numbers, ": share of attainable performance")}
    errors = {case.rstrip(",").removeprefix("network, ").replace("infer,", "inference,").replace("train,", "training,"): value
              for case, value in series(numbers, " MAPE") if case.startswith("network, ")}
    hybrid = dict(series(numbers, ": hybrid / bound"))
    placed: dict[str, float] = {}
    for mix, saved in series(numbers, ": could be saved"):
        placed |= {f"{fleet(mix)}: best simple rule": over_bound(saved), f"{fleet(mix)}: hybrid": hybrid[mix]}
    return (Panel("Measured: training speed", "images/s, logarithmic", rates, ",.4g", logarithmic=True),
            Panel("Explained: share of the roofline", "% of what peak rates allow", shares, ".0f", 100.0),
            Panel("Predicted: mean error on unseen networks, measured CPU", "% of the measured time", errors, ".1f"),
            Panel("Placed: time until all jobs are done", "time over lower bound; 1: optimal", placed, ".2f", 1.0))


def description(numbers: Numbers) -> str:
    """Return the whole figure in words."""
    return " ".join(panel.text for panel in panels(numbers))


def draw(numbers: Numbers):
    """Return the figure: a panel of bars a question; one whose notebook has not been run says so."""
    figure, places = axes(2, 10, 6, 2)
    for axis, panel, colour in zip(places, panels(numbers), SERIES, strict=False):
        _bars(axis, panel, colour)
    return figure


def _bars(axis, panel: Panel, colour: str) -> None:
    axis.set_title(panel.title, fontsize=11)
    axis.set_xlabel(panel.unit, fontsize=9)
    if not panel.bars:
        axis.set(xticks=(), yticks=())
        axis.text(0.5, 0.5, "nothing usable", ha="center", transform=axis.transAxes, color="#777777")
        return
    values = list(panel.bars.values())
    drawn = axis.barh(range(len(values)), values, color=colour, height=0.7)
    axis.bar_label(drawn, [f"{value:{panel.digits}}" for value in values], padding=3, fontsize=9)
    axis.set(xscale="log" if panel.logarithmic else "linear")
    label_rows(axis, list(panel.bars))
    top = max([*values, panel.limit or 0.0])
    axis.set_xlim(min(values) / 3 if panel.logarithmic else 0, top * (4 if panel.logarithmic else 1.15))
    if panel.limit is not None:
        axis.axvline(panel.limit, color="#444444", linewidth=1, linestyle="--")
