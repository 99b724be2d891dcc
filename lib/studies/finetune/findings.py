"""What a fine-tune says, in words that are computed from its numbers; and the key numbers."""

import numpy as np
import pandas as pd

from lib.measure.training.summary import PHASES_MS
from lib.missing import MissingError, needs
from lib.studies.finetune.study import Study, measured_ms
from lib.studies.finetune.tables import recomputed


@needs("epochs")
def learning_words(epochs: pd.DataFrame, monitor: str) -> str:
    """Say how loss and monitored metric went, and whether more epochs may help; ``epochs``: ``tables.epochs``."""
    first, last = epochs.iloc[0], epochs.iloc[-1]
    values = epochs["monitored"].dropna()
    if values.empty:
        raise MissingError(f"values of {monitor}: it is undefined on this validation split")
    best = values.idxmin() if monitor == "val_loss" else values.idxmax()
    more = (" The last epoch is the best one: more epochs may help." if best == epochs.index[-1] and len(epochs) > 1 else "")
    return (f"Over {len(epochs)} epoch{'s' if len(epochs) > 1 else ''} the training loss goes from {first['train_loss']:.3f} "
            f"to {last['train_loss']:.3f}; `{monitor}` is best after epoch {epochs.loc[best, 'epoch']:.0f} (from 0): "
            f"**{values[best]:.3f}**.{more}")


@needs("metrics")
def metric_words(metrics: pd.DataFrame) -> str:
    """Say what the best weights reach on test beside val, micro and macro; ``metrics``: ``tables.metrics``."""
    table = metrics.set_index("metric").reindex(["acc@1", "acc_macro", "auroc_macro"])
    split = "test" if table["test"].notna().any() else "val"
    values = table[split].dropna()
    if values.empty:
        raise MissingError("accuracies or AUROC of the best weights")
    labels = {"acc@1": "accuracy", "acc_macro": "mean over classes", "auroc_macro": "AUROC"}
    shown = ", ".join(f"{labels[name]} {value:.3f}" for name, value in values.items())
    gap = 100 * (table.loc["acc@1", "test"] - table.loc["acc@1", "val"])
    more = f" Its accuracy is {abs(gap):.1f} points {'above' if gap > 0 else 'below'} that on val." if np.isfinite(gap) else ""
    return f"On {split}: **{shown}**.{more}"


@needs("confusions")
def confusion_words(confusions: pd.DataFrame) -> str:
    """Say which class is most often taken for which; ``confusions``: ``tables.confusions``."""
    row = confusions.iloc[0]
    return (f"Most frequent error: {row['truth']} → {row['predicted']}: {row['samples']} samples, "
            f"{row['share_pct']:.0f} % of those where it could occur. {len(confusions)} kinds of error occur.")


@needs("epochs")
def energy_words(epochs: pd.DataFrame) -> str:
    """Say the rate and what it took in energy; ``epochs``: ``tables.epochs``."""
    rate = epochs["images_per_sec"].median()
    if epochs["energy_j"].isna().all():
        return f"{rate:,.0f} images/s (median epoch). Its energy was not measured: this device has no meter that can be read."
    joules = (epochs["energy_j"] / (epochs["images_per_sec"] * epochs["train_s"])).median()
    return f"{rate:,.0f} images/s (median epoch), {joules:.3g} J an image, idle power included."


@needs("predictions")
def predicted_words(table: pd.DataFrame) -> str:
    """Say how far the prediction is from what was measured, and where it would be fastest; ``table``: ``study.predicted``."""
    own, fastest = table.iloc[0], table.loc[table["predicted_ms"].idxmin()]
    text = (f"A step on {own['device']}, {own['source']}: **{own['predicted_ms']:.1f} ms** "
            f"({own['low_ms']:.1f} to {own['high_ms']:.1f})")
    if np.isfinite(own["measured_ms"]):
        inside = own["low_ms"] <= own["measured_ms"] <= own["high_ms"]
        text += (f"; measured **{own['measured_ms']:.1f} ms**, {100 * (own['predicted_ms'] / own['measured_ms'] - 1):+.0f} %, "
                 f"{'inside' if inside else 'outside'} of the interval")
    if len(table) > 1 and fastest["device"] != own["device"]:
        text += (f". Fastest of {len(table)} devices: {fastest['device']}, {fastest['predicted_ms']:.2g} ms, "
                 f"{own['predicted_ms'] / fastest['predicted_ms']:.1f} times as fast")
    return text + "."


@needs("resumed runs")
def resume_words(resumed: pd.DataFrame) -> str:
    """Say whether an interrupted run ended as one in one go did; ``resumed``: ``study.resumed``."""
    differing = resumed["different"].sum()
    if differing:
        worst = resumed.loc[resumed["different"].idxmax()]
        return (f"**{differing} of {resumed['compared'].sum():,} values differ**, most of them {worst['what']}: resume is not "
                "exact here.")
    return (f"All {resumed['compared'].sum():,} values are equal, **bit for bit**: interrupted three times and resumed, the "
            "run ends as the one in one go.")


@needs("epochs", "phases", "predictions", "resumed")
def learned_words(epochs: pd.DataFrame, metrics: pd.DataFrame, phases: pd.DataFrame, predictions: pd.DataFrame,
                  resumed: pd.DataFrame, monitor: str) -> str:
    """Say what to keep: what was learned, at what rate, which phase it goes to, whether it was predicted and can be resumed."""
    lines = [learning_words(epochs, monitor), metric_words(metrics)]
    train = phases[phases["task_type"] == "train"]
    if len(train):
        shares = train.iloc[0][list(PHASES_MS.values())].astype(float) / train.iloc[0]["step_ms"]
        lines.append(f"A step takes {train.iloc[0]['step_ms']:.1f} ms; most goes to {shares.idxmax()} ({shares.max():.0%}).")
    lines += [predicted_words(predictions)] if len(predictions) else []
    lines += [resume_words(resumed)] if len(resumed) else []
    return "\n".join(f"- {line}" for line in lines)


def key_numbers(results: Study, phases: pd.DataFrame, predictions: pd.DataFrame, resumed: pd.DataFrame,
                exact: bool) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce."""
    within = 0.001 if exact else None
    numbers = {name: (value, "", within) for name, value in recomputed(results).items()}
    train = phases[phases["task_type"] == "train"]
    if len(train):
        numbers["unexplained share of the step"] = (train.iloc[0]["unaccounted_pct"], "%", within)
    if len(predictions):
        own = predictions.iloc[0]
        numbers["predicted step"] = (own["predicted_ms"], "ms", within)
        numbers["predicted forward and backward"] = (own["forward_ms"] + own["backward_ms"], "ms", within)
        numbers["measured step"] = (own["measured_ms"], "ms", within)
        numbers["measured forward and backward"] = (measured_ms(results.rows)["passes_ms"], "ms", within)
    if len(resumed):
        numbers["values that differ after a resume"] = (resumed["different"].sum(), "", 0.0)
    rate = pd.DataFrame(results.summary["history"])["images_per_sec"].median()
    return numbers | {"throughput": (rate, "images/s", None)}
