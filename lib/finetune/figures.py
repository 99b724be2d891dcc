"""The figures of an evaluation: confusion matrix and micro-averaged ROC curve."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from seaborn import heatmap
from sklearn.metrics import RocCurveDisplay

from lib.finetune.metrics import Evaluation

_NUMBERED, _NAMED, _LONGEST = 16, 40, 24  # classes whose counts are written, whose names are; characters of a name
_DECISIONS = ("true -", "false +", "false -", "true +")


def _shown(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST - 1]}…"


def counts(evaluation: Evaluation, class_names: Sequence[str]) -> tuple[np.ndarray, list[str], list[str]]:
    """Return the confusion matrix: counts, names of rows (the truth), names of columns (predicted).

    Multi-label: one row per label; the columns are its true and false negatives and positives.
    """
    names = [_shown(name) for name in class_names]
    if evaluation.confusion.ndim == 2:
        return evaluation.confusion, names, names
    return evaluation.confusion.reshape(len(names), 4), names, list(_DECISIONS)


def confusion(evaluation: Evaluation, class_names: Sequence[str]) -> Figure:
    """Return the confusion matrix, coloured by the share of each row."""
    matrix, rows, columns = counts(evaluation, class_names)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    width, height = (1.2 + 0.08 * max(map(len, names)) + 0.42 * min(len(other), _NAMED)
                     for names, other in ((rows, columns), (columns, rows)))
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    annotated = matrix if max(matrix.shape) <= _NUMBERED else None
    heatmap(shares, vmin=0, vmax=1, cmap="Blues", cbar=False, annot=annotated, fmt=",", annot_kws={"size": 8}, ax=axis)
    upright = 90 if max(map(len, columns)) > 2 else 0
    for ticks, labels, rotation in ((axis.set_xticks, columns, upright), (axis.set_yticks, rows, 0)):
        shown = labels if len(labels) <= _NAMED else []
        ticks(np.arange(len(shown)) + 0.5, shown, parse_math=False, rotation=rotation, fontsize=9)
    ylabel, xlabel = ("truth", "predicted") if evaluation.confusion.ndim == 2 else ("label", "decisions")
    axis.set(ylabel=ylabel, xlabel=xlabel, title=f"{evaluation.split}: confusion matrix")
    return figure


def roc(evaluation: Evaluation) -> Figure:
    """Return the micro-averaged ROC curve."""
    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axis = figure.subplots()
    RocCurveDisplay(fpr=evaluation.roc[0], tpr=evaluation.roc[1],
                    roc_auc=evaluation.values[f"{evaluation.split}_auroc_micro"]).plot(ax=axis, plot_chance_level=True)
    axis.set(xlabel="false positive rate", ylabel="true positive rate", title=f"{evaluation.split}: ROC, micro-averaged",
             xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    return figure
