"""What ``02_profile`` shows of profiled runs: phases of a step, how a pass settles, energy, runs side by side, key numbers."""

import numpy as np
import pandas as pd

from lib.measure.statistics import VERDICTS, Timing
from lib.measure.training import matrix
from lib.measure.training.profiled import Profiled
from lib.measure.training.summary import PHASES_MS, steady, unaccounted
from lib.missing import Missing, MissingError, needs
from lib.report.plots import axes, groups, label_rows, legend, panel
from lib.report.sentences import KeyNumbers, Numbers
from lib.report.style import COLOURS, WARM_UP

SHOWN = ("workload_id arch backend precision batch_size data_source step_median_ms step_low_ms step_high_ms images_per_sec "
         "verdict").split()
_MEMORY = {"cuda_mem_alloc_mb": "Memory allocated on the GPU", "peak_rss_mb": "Peak resident memory of the process"}
_PHASES = list(PHASES_MS.values())
_LEAST = 3  # steps that show how a pass settles


# ------------------------------------------------------------------------------------------------- figures

@needs("profiled training steps")
def phases_over_time(rows: pd.DataFrame):
    """Return the training steps one after another, stacked by phase, warm-up shaded; bars beyond the axis carry their ms."""
    figure, axis = panel()
    train = _enough(rows.query("task_type == 'train'")).sort_values("global_step", ignore_index=True)
    ends = train[list(PHASES_MS)].cumsum(axis=1)
    for column, label in PHASES_MS.items():
        axis.bar(train["global_step"], train[column], bottom=ends[column] - train[column], width=1.0, color=COLOURS[label],
                 label=label)
    if warm := int(train["warmup"].sum()):
        axis.axvspan(-0.5, warm - 0.5, color=WARM_UP, zorder=0)
        axis.annotate("warm-up", (warm / 2 - 0.5, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=9)
    steps_ms = ends.iloc[:, -1]
    top = min(steps_ms.max() * 1.05, 3 * steps_ms.median())
    for row, step_ms in steps_ms[steps_ms > top].items():
        axis.annotate(f"{step_ms:,.0f} ms", (train["global_step"][row] + 0.5, top), (3, -3),
                      textcoords="offset points", ha="left", va="top", fontsize=8)
    axis.set(xlabel="training step", ylabel="ms", xlim=(-0.5, len(train) - 0.5), ylim=(0, top))
    axis.grid(axis="x", visible=False)
    legend(figure, 5)
    return figure


@needs("profiled steps")
def phase_stack(table: pd.DataFrame, labels: str, shares: bool = False):
    """Return one horizontal bar a row of ``table``, stacked by phase; ``labels`` names the column that labels the bars.

    With ``shares`` bars are % of the step: workloads of any length fit one axis. The step's ms stand at the end.
    """
    figure, axis = panel(height=1.3 + 0.42 * len(table))
    phases_ms = table[_PHASES]
    steps_ms = phases_ms.sum(axis=1)
    values = phases_ms.div(steps_ms, axis=0) * 100 if shares else phases_ms
    values.plot.barh(stacked=True, ax=axis, color=COLOURS, width=0.8, legend=False)
    axis.bar_label(axis.containers[-1], [f" {step:,.1f} ms" for step in steps_ms], fontsize=9)
    axis.set(xlabel="% of the step" if shares else "ms", xlim=(0, values.sum(axis=1).max() * 1.14))
    label_rows(axis, table[labels], 11)
    legend(figure, 5)
    return figure


@needs("profiled steps")
def throughput_and_memory(rows: pd.DataFrame):
    """Return throughput and memory (of the GPU where one was used) over the steps of every pass, warm-up steps faint."""
    _enough(rows)
    memory = "cuda_mem_alloc_mb" if (rows["device_type"] == "cuda").any() else "peak_rss_mb"
    figure, (left, right) = axes(2, 9, 3.2)
    for name, part, options in groups(rows, "task_type"):
        line = {"color": options["color"], "label": name}
        left.plot(part["global_step"], part["images_per_sec"], color=options["color"], alpha=0.35, linewidth=1)
        left.plot(part["global_step"], part["images_per_sec"].mask(part["warmup"]), **line)
        right.plot(part["global_step"], part[memory], **line)
    left.set(xlabel="step of the pass", ylabel="images/s", ylim=(0, None), title="Throughput")
    right.set(xlabel="step of the pass", ylabel="MB", ylim=(0, rows[memory].max() * 1.15), title=_MEMORY[memory])
    left.legend()
    return figure


@needs("usable runs")
def throughput_by_workload(table: pd.DataFrame):
    """Return images per second of each workload, a bar a backend and precision, on a logarithmic axis."""
    figure, axis = panel(height=3.2)
    wide = table.assign(series=table["backend"] + " " + table["precision"]).pivot_table(
        index="workload_id", columns="series", values="images_per_sec")
    wide.plot.bar(ax=axis, width=0.8, rot=0, logy=True, xlabel="", ylabel="images/s")
    for bars in axis.containers:
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=9, padding=2)
    axis.set_ylim(top=wide.max().max() * 2.5)
    axis.grid(axis="x", visible=False)
    axis.legend()
    return figure


def _enough(steps: pd.DataFrame) -> pd.DataFrame:
    if len(steps) < _LEAST:
        raise MissingError(f"course of a pass: {len(steps)} steps were profiled, {_LEAST} are the least")
    return steps


# ------------------------------------------------------------------------------------------------- tables

def phase_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each pass, the median step, its IQR and n, the median of each phase, and what the phases leave over.

    Columns: task_type, n, step_ms, iqr_pct, one a phase (ms), unaccounted_pct (median of |step - sum| / step).
    """
    table = []
    for kind, group in steady(rows).groupby("task_type", sort=False):
        timing = Timing(group["step_time_ms"].to_numpy())
        table.append((kind, timing.n, timing.median_ms, timing.iqr_ms / timing.median_ms * 100,
                      *group[list(PHASES_MS)].median(), unaccounted(group) * 100))
    return pd.DataFrame(table, columns=["task_type", "n", "step_ms", "iqr_pct", *_PHASES, "unaccounted_pct"])


def energy(run: pd.Series, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the energy of a batch and of an image in each pass that has it: the pipelined one as a whole, then profiled steps.

    ``run`` is its row of ``runs``. Columns: pass, of (what was measured), J and above idle J, each a batch and an image, mean
    and idle W. Of profiled steps they are medians over the full batches that were long enough for a meter's samples.
    """
    names = ["pass", "of", "J/batch", "J/image", "J/image above idle", "mean W", "idle W"]
    batches = f"all {run['measured_iters']:.0f} batches"
    table = [("train, pipelined", batches, run.image_j * run.batch_size, run.image_j,
              run.image_j * (1 - run.idle_w / run.power_w), run.power_w, run.idle_w)]
    for kind, part in steady(rows).groupby("task_type", sort=False):
        joules, seconds, size = part["energy_j"], part["step_time_ms"] / 1e3, part["batch_size"]
        above_j = joules - run.idle_w * seconds
        medians = pd.concat([joules, joules / size, above_j / size, joules / seconds], axis=1).median()
        table.append((f"{kind}, profiled", f"{joules.count()} of {len(part)} batches", *medians, run.idle_w))
    frame = pd.DataFrame(table, columns=names)
    return frame.dropna(subset="J/batch", ignore_index=True)


def metrics(run: Profiled) -> pd.DataFrame:
    """Return loss, accuracy and AUC of each pass of a run."""
    table = pd.DataFrame([{"pass": kind, **values} for kind, values in run.metrics.items()],
                         columns=["pass", "loss", "accuracy", "auc"])
    return table.rename(columns={"auc": "AUC"})


def latest(runs: pd.DataFrame, hardware_id: str) -> pd.DataFrame:
    """Return the newest run of each workload, backend and precision on one machine, unusable ones left out.

    ``attrs["unusable"]`` counts what was left out.
    """
    keys = ["workload_id", "backend", "precision"]
    newest, unusable = matrix.newest(runs.query("hardware_id == @hardware_id").dropna(subset="step_median_ms"), keys)
    newest = newest.sort_values(keys, ignore_index=True)
    newest.attrs["unusable"] = unusable
    return newest


def side_by_side(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line a run: its identity, throughput, verdict, and the median of every phase of its training step.

    ``rows`` are the profile rows of those runs.
    """
    train = steady(rows.query("task_type == 'train'"))
    phases = train.groupby("run_id")[list(PHASES_MS)].median().rename(columns=PHASES_MS)
    return runs[["run_id", *SHOWN]].merge(phases, left_on="run_id", right_index=True, validate="one_to_one")


# ------------------------------------------------------------------------------------------------- numbers of sentences

def run_numbers(run: pd.Series) -> Numbers:
    """Return a row of ``runs`` with the pipelined step, ms, how far the profiled one is above it, and J an image above idle."""
    pipelined_ms = run.elapsed_sec / run.measured_iters * 1000
    idle_known = bool(run.idle_w > 0)
    return {**run.to_dict(), "pipelined_ms": pipelined_ms, "over_pipelined": run.step_median_ms / pipelined_ms - 1,
            "stable": run.verdict == "stable", "profiled": run.step_n, "on_cpu": run.backend == "cpu",
            "idle_unknown": bool(run.image_j > 0) and not idle_known,
            "above_idle_j": run.image_j * (1 - run.idle_w / run.power_w) if idle_known else None}


def facts(run: pd.Series, table: pd.DataFrame) -> list[Numbers | Missing]:
    """Return the numbers of a run and of its phases (``table``: ``phase_table``); a run that is unusable has none."""
    if run.verdict == VERDICTS[-1]:
        return [Missing(f"The run is unusable, and its times are no facts: {run['reason']}. Run it again on a quiet machine.")]
    return [run_numbers(run), phases(table)]


@needs("profiled training steps")
def phases(table: pd.DataFrame) -> Numbers:
    """Return the two longest phases of a training step, what a perfect loader would gain, the share of an evaluation step.

    ``table``: ``phase_table``.
    """
    steps = table.set_index("task_type")
    if "train" not in steps.index:
        raise MissingError("profiled training steps")
    train = steps.loc["train"]
    shares = (train[_PHASES].astype(float) / train["step_ms"]).sort_values(ascending=False)
    loading = shares["loader wait"] + shares["copy to device"]
    evaluation_ms = steps["step_ms"].get("eval", np.nan)
    return {"step_ms": train["step_ms"], "phases": shares.rename_axis("phase").reset_index(name="share"),
            "second": shares.index[1], "second_share": shares.iloc[1], "evaluation_ms": evaluation_ms,
            "evaluation_share": evaluation_ms / train["step_ms"], "unexplained_pct": table["unaccounted_pct"].max(),
            "loading_share": loading, "perfect_loader": 1 / (1 - loading),
            "arithmetic_share": shares["forward"] + shares["backward"]}


@needs("profiled training steps")
def settling(rows: pd.DataFrame) -> Numbers:
    """Return how a training pass settles: the first step against the steady median, and the time the warm-up took.

    ``rows`` are its rows of ``profile``.
    """
    train = _enough(rows.query("task_type == 'train'"))
    steady_ms, first_ms = steady(train)["step_time_ms"].median(), train["step_time_ms"].iloc[0]
    return {"first_ms": first_ms, "steady_ms": steady_ms, "ratio": first_ms / steady_ms,
            "warmup_s": train.loc[train["warmup"], "step_time_ms"].sum() / 1000}


def comparison(table: pd.DataFrame, rows: pd.DataFrame) -> Numbers:
    """Return what runs side by side have in common; ``table``: ``side_by_side``, ``rows``: their ``profile``."""
    unexplained = [unaccounted(part) * 100 for _, part in steady(rows).groupby(["run_id", "task_type"])]
    return {"runs": table.eval("loader_share = `loader wait` / step_median_ms"),
            "stable": int((table["verdict"] == "stable").sum()),
            "ratio": table["step_median_ms"].max() / table["step_median_ms"].min(),
            "backward_over_forward": (table["backward"] / table["forward"]).median(),
            "unexplained_pct": pd.Series(unexplained, dtype=float).max()}


def key_numbers(run: pd.Series, rows: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers of one run: name to value, unit and tolerance.

    ``run`` is its row of ``runs``, ``rows`` are its rows of ``profile``, none where only the pipelined pass was run.
    """
    name = f"{run['workload_id']}_{run['backend']}_{run['precision']}"
    numbers = {"rows": (len(rows), "rows", 0.0), "warm-up rows": (rows["warmup"].sum(), "rows", 0.0),
               "smallest batch": (rows["batch_size"].min() if len(rows) else 0, "samples", 0.0)}
    if len(rows):
        numbers["unexplained share of the step"] = (phase_table(rows)["unaccounted_pct"].max(), "%", 0.001)
    numbers |= {"throughput": (run.images_per_sec, "images/s"), "step": (run.step_median_ms, "ms"),
                "verdict": (run.verdict, "")}
    return {f"{name} {what}": number for what, number in numbers.items()}


def shared_numbers(compared: Numbers) -> KeyNumbers:
    """Return the key numbers of the runs of ``comparison``."""
    return {"backward over forward": (compared["backward_over_forward"], "", 0.001),
            "largest loader share": (compared["runs"]["loader_share"].max() * 100, "%", 0.001),
            "largest unexplained share": (compared["unexplained_pct"], "%", 0.001),
            "stable runs": (f"{compared['stable']} of {len(compared['runs'])}", "")}
