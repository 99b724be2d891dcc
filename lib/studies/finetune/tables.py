"""The tables of a fine-tune (config, epochs, metrics, confusions), the numbers of its sentences, and its key numbers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.finetune.config import TrainConfig
from lib.finetune.metrics import Evaluation
from lib.missing import needs
from lib.report.sentences import KeyNumbers, Numbers
from lib.studies.finetune.study import Study, measured_ms

EPOCHS = "epoch train_loss train_acc@1 val_loss val_acc@1 monitored lr train_s images_per_sec energy_j".split()


def config(own: TrainConfig) -> pd.DataFrame:
    """Return the fields of a config that are required or not at their defaults."""
    fields = TrainConfig.model_fields
    rows = [(name, str(value), "" if fields[name].is_required() else str(fields[name].default))
            for name, value in own if name in own.content() and (fields[name].is_required() or value != fields[name].default)]
    return pd.DataFrame(rows, columns=["field", "value", "default"])


def epochs(results: Study) -> pd.DataFrame:
    """Return a row an epoch (EPOCHS); ``monitored`` is the metric by which the best weights are chosen."""
    table = pd.DataFrame(results.summary["history"]).assign(monitored=lambda rows: rows[results.summary["monitor"]])
    table = table.reindex(columns=EPOCHS).astype(dict.fromkeys(EPOCHS[1:], float))
    return table.assign(lr=table["lr"].map("{:.1e}".format))


def recomputed(results: Study) -> dict[str, float]:
    """Return key numbers once more from what they were made of: reported steps and epochs, and counts of the confusion matrix.

    The training loss is that of the last epoch, from its steps weighted by their samples; NaN where the run was not profiled.
    """
    history, monitor = results.history, results.summary["monitor"]
    steps = history.query("name == 'train/step_loss'")
    epochs = history.loc[history["name"] == f"val/{monitor.removeprefix('val_')}", "value"]
    last = steps[steps["epoch"] == steps["epoch"].max()].set_index("step")["value"]
    train = results.rows.query("task_type == 'train'").set_index("global_step")["batch_size"].reindex(last.index)
    matrix = results.final.confusion
    return {"batches": len(steps), "epochs": len(epochs),
            f"best {monitor}": epochs.min() if monitor == "val_loss" else epochs.max(),
            "last training loss": (last * train).sum(skipna=False) / train.sum(),
            f"{results.final.split} acc@1": matrix.diagonal(axis1=-2, axis2=-1).sum() / matrix.sum()}


def metrics(results: Study) -> pd.DataFrame:
    """Return a row a metric: of the best epoch on val, and of its weights on test (NaN without a test split)."""
    best, tested = results.summary["history"][results.summary["best_epoch"]], results.summary["test"]
    names = [name.removeprefix("val_") for name in best if name.startswith("val_")]
    rows = [(name, best[f"val_{name}"], tested.get(f"test_{name}")) for name in names]
    return pd.DataFrame(rows, columns=["metric", "val", "test"]).astype({"val": float, "test": float})


def confusions(evaluation: Evaluation, labels: Sequence[str]) -> pd.DataFrame:
    """Return which class is taken for which, the most frequent first: truth, predicted, samples, share of the class.

    Multi-label: for each label what was ``missed``, and what was ``added`` to samples without it.
    """
    matrix = evaluation.confusion
    if matrix.ndim == 3:
        rows = [(label, predicted, int(matrix[index][cell]), int(matrix[index][cell[0]].sum()))
                for index, label in enumerate(labels) for predicted, cell in (("missed", (1, 0)), ("added", (0, 1)))]
    else:
        rows = [(labels[row], labels[column], int(count), int(matrix[row].sum()))
                for (row, column), count in np.ndenumerate(matrix) if row != column]
    table = pd.DataFrame(rows, columns=["truth", "predicted", "samples", "of"])
    table = table.query("samples > 0").eval("share_pct = 100 * samples / of").drop(columns="of")
    return table.sort_values("samples", ascending=False, kind="stable", ignore_index=True)


# ------------------------------------------------------------------------------------------------- numbers of sentences

def learning(table: pd.DataFrame, monitor: str) -> Numbers:
    """Return the epochs with the energy of an image, and the same, best monitored metric first; ``table``: ``epochs``."""
    table = table.eval("image_j = energy_j / (images_per_sec * train_s)")
    ranked = table.dropna(subset="monitored").sort_values("monitored", ascending=monitor == "val_loss", kind="stable")
    return {"epochs": table, "monitor": monitor, "ranked": ranked, "no_energy": table["image_j"].isna().all(),
            "last_is_best": len(table) > 1 and len(ranked) > 0 and ranked.index[0] == table.index[-1]}


def worth(metrics: pd.DataFrame) -> Numbers:
    """Return what the best weights reach on test, without a test split on val; ``metrics``: the table of that name."""
    table = metrics.set_index("metric").reindex(["acc@1", "acc_macro", "auroc_macro"])
    split = "test" if table["test"].notna().any() else "val"
    return {"split": split, "reached": table[split], "over_val": 100 * (table["test"] - table["val"])["acc@1"]}


@needs("predictions")
def predicted(table: pd.DataFrame) -> Numbers:
    """Return how far the prediction is off, and which device would be fastest; ``table``: ``study.predicted``."""
    run, fastest = table.iloc[0], table.nsmallest(1, "predicted_ms").iloc[0]
    return {"devices": table, "error": run.predicted_ms / run.measured_ms - 1,
            "inside": run.low_ms <= run.measured_ms <= run.high_ms,
            "elsewhere": fastest.device != run.device, "faster": run.predicted_ms / fastest.predicted_ms}


def key_numbers(results: Study, phases: pd.DataFrame, predictions: pd.DataFrame,
                resumed: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers: name to value, unit and tolerance."""
    numbers = {name: (value, "") for name, value in recomputed(results).items()}
    train = phases.query("task_type == 'train'")
    if len(train):
        numbers["unexplained share of the step"] = (train.iloc[0]["unaccounted_pct"], "%")
    if len(predictions):
        step = predictions.iloc[0]
        numbers |= {"predicted step": (step["predicted_ms"], "ms"),
                    "predicted forward and backward": (step["forward_ms"] + step["backward_ms"], "ms"),
                    "measured step": (step["measured_ms"], "ms"),
                    "measured forward and backward": (measured_ms(results.rows)["passes_ms"], "ms")}
    if len(resumed):
        numbers["values that differ after a resume"] = (resumed["different"].sum(), "", 0.0)
    rate = pd.DataFrame(results.summary["history"])["images_per_sec"].median()
    return {**numbers, "throughput": (rate, "images/s", None)}
