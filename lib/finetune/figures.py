"""The figures of an evaluation: confusion matrix and micro-averaged ROC curve."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from seaborn import heatmap
from sklearn.metrics import RocCurveDisplay

from lib.finetune.metrics import Evaluation

_NUMBERED, _LONGEST = 16, 24  # classes whose counts are written; characters of a name
_DECISIONS = ["true -", "false +", "false -", "true +"]


def counts(evaluation: Evaluation, labels: Sequence[str]) -> pd.DataFrame:
    """Return the confusion matrix: rows are true classes, columns predicted ones.

    Multi-label: one row per label; the columns are its true and false negatives and positives.
    """
    names = [name if len(name) <= _LONGEST else f"{name[:_LONGEST - 1]}…" for name in labels]
    columns = names if evaluation.confusion.ndim == 2 else _DECISIONS
    return pd.DataFrame(evaluation.confusion.reshape(len(names), -1), names, columns)


def confusion(evaluation: Evaluation, labels: Sequence[str]) -> Figure:
    """Return the confusion matrix, coloured by the share of each row."""
    matrix = counts(evaluation, labels)
    figure = Figure(figsize=(3 + 0.4 * min(matrix.shape[1], 40), 2.5 + 0.4 * min(len(matrix), 40)),
                    layout="constrained")
    axis = figure.subplots()
    shares = matrix.div(matrix.sum(axis=1).clip(lower=1), axis=0).to_numpy()
    annotated = matrix.to_numpy() if max(matrix.shape) <= _NUMBERED else None
    heatmap(shares, vmin=0, vmax=1, cmap="Blues", cbar=False, annot=annotated, fmt=",", ax=axis)
    axis.set_xticks(np.arange(matrix.shape[1]) + 0.5, matrix.columns, parse_math=False, rotation=90)
    axis.set_yticks(np.arange(len(matrix)) + 0.5, matrix.index, parse_math=False, rotation=0)
    axis.set(ylabel="truth", xlabel="predicted", title=f"{evaluation.split}: confusion matrix")
    return figure


def roc(evaluation: Evaluation) -> Figure:
    """Return the micro-averaged ROC curve."""
    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    area = evaluation.values[f"{evaluation.split}_auroc_micro"]
    axis = figure.subplots()
    RocCurveDisplay(fpr=evaluation.roc[0], tpr=evaluation.roc[1], roc_auc=area).plot(
        ax=axis, plot_chance_level=True)
    axis.set(title=f"{evaluation.split}: ROC, micro-averaged", aspect="equal")
    return figure
