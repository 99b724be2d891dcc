"""What a profiled run says, in sentences and tables: phases, warm-up, metrics, runs side by side."""


import numpy as np
import pandas as pd

from lib.measure.training.profiled import Profiled
from lib.measure.training.summary import _WHY, PHASES_MS, warm_up
from lib.missing import MissingError, needs


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
