"""What a profiled run says, in sentences, and its key numbers: phases, warm-up, metrics, runs side by side."""

import numpy as np
import pandas as pd

from lib.measure.training.profiled import Profiled
from lib.measure.training.summary import PHASES_MS
from lib.missing import MissingError, needs
from lib.studies.profile.tables import across, phase_table, warm_up

_WHY = {True: "; on a CPU, where nothing runs ahead, the two differ only by what disturbed one of them",
        False: "; the difference is what waiting for the device after each step costs"}


@needs("profiled steps")
def phase_words(table: pd.DataFrame) -> str:
    """Say in words what ``phase_table`` shows for the training step."""
    steps = table[table["task_type"] == "train"]
    if steps.empty:
        raise MissingError("profiled training steps")
    train = steps.iloc[0]
    shares = (train[list(PHASES_MS.values())].astype(float) / train["step_ms"]).sort_values(ascending=False)
    first, second = shares.index[:2]
    evaluation = table.loc[table["task_type"] == "eval", "step_ms"]
    text = (f"A training step takes **{train['step_ms']:.1f} ms**; {first} takes {shares[first]:.0%} of it and {second} "
            f"{shares[second]:.0%}. ")
    if len(evaluation):
        text += f"An evaluation step takes {evaluation.iloc[0]:.1f} ms, {evaluation.iloc[0] / train['step_ms']:.0%} of that. "
    return text + f"The phases leave at most {table['unaccounted_pct'].max():.2f} % of a step unexplained."


@needs("profiled training steps")
def warm_up_words(rows: pd.DataFrame) -> str:
    """Say in words how the training pass settles."""
    if not (rows["task_type"] == "train").any():
        raise MissingError("profiled training steps")
    warm = warm_up(rows)
    if np.isnan(warm["steady_ms"]):
        raise MissingError("training steps after the warm-up")
    return (f"The first step took **{warm['first_ms']:.1f} ms**, {warm['ratio']:.1f} times the steady "
            f"{warm['steady_ms']:.1f} ms; the warm-up took {warm['warmup_s']:.2f} s in all.")


def profiled_words(run: pd.Series, pipelined_ms: float) -> str:
    """Say in words how the profiled step compares with the pipelined one."""
    if not run["step_n"]:
        return "This run was not profiled: only the pipelined pass was measured."
    change = run["step_median_ms"] / pipelined_ms - 1
    return (f"The profiled step has a median of {run['step_median_ms']:.1f} ms (95 % interval {run['step_low_ms']:.1f} to "
            f"{run['step_high_ms']:.1f}, n = {run['step_n']}), {abs(change):.0%} {'above' if change > 0 else 'below'} the mean "
            f"pipelined step{_WHY[run['backend'] == 'cpu']}.")


@needs("usable runs")
def comparison_words(table: pd.DataFrame) -> str:
    """Say in words what the workloads side by side show."""
    slow, fast = table.loc[table["step_median_ms"].idxmax()], table.loc[table["step_median_ms"].idxmin()]
    loader = table.assign(share=table["loader wait"] / table["step_median_ms"]).sort_values("share").iloc[-1]
    trusted = int((table["verdict"] == "stable").sum())
    return (f"From {fast['workload_id']} ({fast['step_median_ms']:.1f} ms) to {slow['workload_id']} "
            f"({slow['step_median_ms']:.1f} ms) the step grows {slow['step_median_ms'] / fast['step_median_ms']:.0f}-fold. "
            f"The loader weighs most in {loader['workload_id']} on {loader['backend']}: {loader['share']:.0%} of its step. "
            f"{trusted} of {len(table)} runs are stable; the others are noisy and their intervals too narrow.")


def metrics_table(run: Profiled) -> pd.DataFrame:
    """Return loss, accuracy and AUC of each pass of a run."""
    table = pd.DataFrame([{"pass": kind, **values} for kind, values in run.metrics.items()],
                         columns=["pass", "loss", "accuracy", "auc"])
    return table.rename(columns={"auc": "AUC"})


def run_words(run: pd.Series) -> str:
    """Say what was run, where, and how far to trust it; ``run`` is its row of ``runs``."""
    return (f"**{run['workload_id']}**: {run['arch']} on {run['dataset']}, batch {run['batch_size']}, {run['precision']}, on "
            f"{run['device_name']} with {run['threads']} CPU threads. Run `{run['run_id']}`, verdict **{run['verdict']}**"
            f"{'' if run['verdict'] == 'stable' else ' (' + str(run['reason']) + ')'}.")


def pipelined_ms(run: pd.Series) -> float:
    """Return the mean step of the pipelined pass, ms."""
    return run["elapsed_sec"] / run["measured_iters"] * 1000


def learned_words(run: pd.Series, phases: pd.DataFrame) -> str:
    """Say what to keep of a run: its rate, what to change if it shall be faster, what profiling cost, and the verdict."""
    lines = [f"{run['workload_id']} trains at **{run['images_per_sec']:,.0f} images/s** on {run['backend']}: "
             f"{pipelined_ms(run):.1f} ms a pipelined step.", *_lever(phases), profiled_words(run, pipelined_ms(run)),
             *([] if np.isnan(run["image_j"]) else [energy_words(run)]),
             f"The process used {run['cpu_percent']:.0f} % of one core; others used {run['other_cpu_cores']:.2f} cores "
             f"meanwhile. Verdict: **{run['verdict']}**."]
    return "\n".join(f"- {line}" for line in lines)


def energy_words(run: pd.Series) -> str:
    """Say what an image took, above idle too, by which meter and how sure that is; or why it was not measured."""
    if np.isnan(run["image_j"]):
        return f"Energy was not measured: {run['energy_reason']}."
    above_j = run["image_j"] * (1 - run["idle_w"] / run["power_w"])
    idle = f"{above_j:.4g} J of it above idle ({run['idle_w']:.1f} W in the same session)" if run["idle_w"] > 0 else \
        "idle power is not known"
    check = "" if np.isnan(run["energy_disagreement"]) else \
        f"; integrated power and the counter differ by {run['energy_disagreement']:+.1%}"
    return (f"Training on one image took **{run['image_j']:.4g} J** ({run['energy_method']}, {run['energy_n']} "
            f"samples{check}): {run['power_w']:.1f} W on average, {idle}.")


def _lever(phases: pd.DataFrame) -> list[str]:
    """Return a sentence on which phase is worth work: how much faster a step could be at most without it."""
    train = phases[phases["task_type"] == "train"]
    if train.empty:
        return []
    shares = (train.iloc[0][list(PHASES_MS.values())].astype(float) / train.iloc[0]["step_ms"])
    loading = shares["loader wait"] + shares["copy to device"]
    return [f"Loading and copying are {loading:.0%} of the step: a perfect loader would make it {1 / (1 - loading):.2f} times "
            f"as fast at most; the arithmetic of both passes is {shares['forward'] + shares['backward']:.0%}."]


def key_numbers(run: pd.Series, rows: pd.DataFrame, exact: bool) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of one run, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce.

    ``run`` is its row of ``runs``, ``rows`` are its rows of ``profile``, none where only the pipelined pass was run.
    """
    name = f"{run['workload_id']}_{run['backend']}_{run['precision']}"
    numbers = {"rows": (len(rows), "rows", 0.0), "warm-up rows": (int(rows["warmup"].sum()), "rows", 0.0),
               "smallest batch": (rows["batch_size"].min() if len(rows) else 0, "samples", 0.0)}
    if len(rows):
        numbers["unexplained share of the step"] = (phase_table(rows)["unaccounted_pct"].max(), "%", 0.001 if exact else None)
    numbers |= {"throughput": (run["images_per_sec"], "images/s", None), "step": (run["step_median_ms"], "ms", None),
                "verdict": (run["verdict"], "", None)}
    return {f"{name} {what}": number for what, number in numbers.items()}


def shared_numbers(table: pd.DataFrame, rows: pd.DataFrame, exact: bool) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of the runs of ``side_by_side``; ``rows`` are their rows of ``profile``."""
    shared, tolerance = across(table, rows), 0.001 if exact else None
    units = {"backward over forward": "", "largest loader share": "%", "largest unexplained share": "%"}
    return {name: (shared[name], unit, tolerance) for name, unit in units.items()} | {
        "stable runs": (f"{shared['stable runs']:.0f} of {len(table)}", "", None)}
