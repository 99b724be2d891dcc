"""The tables of a fine-tune: its config, its epochs, its metrics, and which classes are taken for which."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.finetune.config import TrainConfig
from lib.finetune.metrics import Evaluation
from lib.studies.finetune.study import Study

EPOCHS = ("epoch", "train_loss", "train_acc@1", "val_loss", "val_acc@1", "monitored", "lr", "train_s", "images_per_sec",
          "energy_j")


def config(own: TrainConfig) -> pd.DataFrame:
    """Return the fields of a config that are required or not at their defaults."""
    fields = TrainConfig.model_fields
    rows = [{"field": name, "value": str(value), "default": "" if fields[name].is_required() else str(fields[name].default)}
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
    steps = history[history["name"] == "train/step_loss"]
    epochs = history.loc[history["name"] == f"val/{monitor.removeprefix('val_')}", "value"]
    last = steps[steps["epoch"] == steps["epoch"].max()].set_index("step")["value"]
    train = results.rows[results.rows["task_type"] == "train"].set_index("global_step")["batch_size"].reindex(last.index)
    matrix = results.final.confusion
    return {"batches": float(len(steps)), "epochs": float(len(epochs)),
            f"best {monitor}": float(epochs.min() if monitor == "val_loss" else epochs.max()),
            "last training loss": float((last * train).sum(skipna=False) / train.sum()),
            f"{results.final.split} acc@1": float(matrix.diagonal(axis1=-2, axis2=-1).sum() / matrix.sum())}


def metrics(results: Study) -> pd.DataFrame:
    """Return a row a metric: of the best epoch on val, and of its weights on test (NaN without a test split)."""
    best = results.summary["history"][results.summary["best_epoch"]]
    names = [name.removeprefix("val_") for name in best if name.startswith("val_")]
    tested = [results.summary["test"].get(f"test_{name}") for name in names]
    table = pd.DataFrame({"metric": names, "val": [best[f"val_{name}"] for name in names], "test": tested})
    return table.astype({"val": float, "test": float})


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
    table = table[table["samples"] > 0].assign(share_pct=lambda one: 100 * one["samples"] / one["of"])
    return table.drop(columns="of").sort_values("samples", ascending=False, kind="stable", ignore_index=True)
