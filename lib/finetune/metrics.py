"""The metrics of an evaluation: TorchMetrics over a whole split, by name.

TensorBoard, ``history.csv`` and ``monitor_metric`` use the name after the split: ``val_f1_macro``.
``acc@1`` is the share of right samples, as training reports it, too; ``acc_macro`` is the mean over
classes. (The platform that these names come from wrote the macro one under ``val_acc@1``.)
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics as tm
from pydantic_core import from_json, to_json
from torch.nn.functional import one_hot
from torchmetrics import Metric, MetricCollection

from lib import store
from lib.config.base import json_mapping
from lib.errors import InputError, choices, refused

PER_CLASS = ("acc_macro", "f1_macro", "map", "auroc_macro", "recall_macro")
_CURVE_POINTS = 501


def collection(classes: int, multi_label: bool, eval_topk: Sequence[int] = ()) -> dict[str, Metric]:
    """Return the metrics by name: a new metric is one more line.

    Those of ``PER_CLASS`` have one value per class, of which ``SplitMetrics`` takes the mean.
    """
    task = {"task": "multilabel", "num_labels": classes} if multi_label else \
        {"task": "multiclass", "num_classes": classes}
    task |= {"validate_args": False, "sync_on_compute": False}
    metrics = {"acc@1": tm.Accuracy(**task, average="micro"),
               "acc_macro": tm.Accuracy(**task, average="none"),
               "f1_macro": tm.F1Score(**task, average="none"),
               "map": tm.AveragePrecision(**task, average="none"),
               "auroc_macro": tm.AUROC(**task, average="none"),
               "recall_micro": tm.Recall(**task, average="micro"),
               "recall_macro": tm.Recall(**task, average="none")}
    if not multi_label:
        metrics["cohenkappa"] = tm.CohenKappa(**task)
        for k in sorted({*eval_topk} - {1}):
            if k < classes:
                metrics[f"acc@{k}"] = tm.Accuracy(**task, average="micro", top_k=k)
    return metrics


def check_monitor(monitor: str, eval_topk: Sequence[int], classes: int = 0,
                  multi_label: bool = False) -> None:
    """Raise InputError where ``monitor``, such as val_acc@1, is not measured.

    ``classes`` is how many there are; 0: any number.
    """
    computed = collection(classes or max([2, *eval_topk]) + 1, multi_label, eval_topk)
    measured = [f"val_{name}" for name in ["loss", *computed, "auroc_micro"]]
    if monitor not in measured:
        raise InputError(f"monitor_metric {monitor!r} is not measured; there are: "
                         f"{choices(measured)}")


@dataclass(frozen=True)
class Evaluation:
    """The results of a pass over a split: ``values`` by name (``val_acc@1``), and figures' data.

    ``confusion`` counts: (classes, classes), one row per true class; multi-label (labels, 2, 2).
    ``roc`` is the micro-averaged curve, (false positive rates, true positive rates).
    """

    split: str
    values: dict[str, float]
    samples: int
    confusion: np.ndarray
    roc: tuple[np.ndarray, np.ndarray]

    def write(self, folder: Path) -> Path:
        """Write ``evaluation_<split>.json`` into ``folder``; undefined values are null."""
        content = {**vars(self), "confusion": self.confusion.tolist(),
                   "roc": [axis.round(6).tolist() for axis in self.roc]}
        return store.write_json(plain(content), folder / f"evaluation_{self.split}.json")

    @classmethod
    def read(cls, path: Path) -> "Evaluation":
        """Read what ``write`` wrote; InputError for any other file."""
        content = json_mapping(path)
        with refused(f"{path} is no evaluation: "):
            values = {name: math.nan if value is None else float(value)
                      for name, value in content["values"].items()}
            fpr, tpr = (np.array(axis, dtype=float) for axis in content["roc"])
            confusion = np.array(content["confusion"], dtype=np.int64)
            return cls(content["split"], values, content["samples"], confusion, (fpr, tpr))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinite numbers become null."""
    return from_json(to_json(value, inf_nan_mode="null"))


class SplitMetrics:
    """The metrics of one pass over a split; nothing waits for the device before ``compute``."""

    def __init__(self, split: str, classes: int, multi_label: bool, eval_topk: Sequence[int] = (),
                 device: torch.device | str = "cpu"):
        self.split, self._classes, self._multi_label = split, classes, multi_label
        metrics = collection(classes, multi_label, eval_topk)
        ranked = ["map", "auroc_macro"]  # both keep all scores: once is enough
        groups = [ranked, *[[name] for name in metrics if name not in ranked]]
        self._metrics = MetricCollection(metrics, compute_groups=groups).to(device)
        options = {"validate_args": False, "sync_on_compute": False}
        task = "multilabel" if multi_label else "multiclass"
        self._confusion = tm.ConfusionMatrix(task, num_classes=classes, num_labels=classes,
                                             **options).to(device)
        self._roc = tm.ROC("binary", **options).to(device)
        self._loss = tm.MeanMetric(nan_strategy="disable", sync_on_compute=False).to(device)
        self._finite, self.samples = torch.ones((), dtype=torch.bool, device=device), 0

    def update(self, losses: torch.Tensor, scores: torch.Tensor, targets: torch.Tensor) -> None:
        """Add a batch: losses (N,), probabilities (N, classes), and targets (N,) or (N, labels)."""
        scores, targets = scores.float(), targets.long()
        truth = targets if self._multi_label else one_hot(targets, self._classes)
        self._loss.update(losses.float())
        self._finite &= scores.isfinite().all()
        self._metrics.update(scores, targets)
        self._confusion.update(scores, targets)
        self._roc.update(scores.flatten(), truth.flatten())
        self.samples += len(targets)

    def compute(self) -> Evaluation:
        """Return the results. Undefined values are NaN; a NaN score leaves only the loss.

        Means are over the classes that occur, for AUROC over those that vary.
        """
        values = dict.fromkeys(["loss", *self._metrics.keys(), "auroc_micro"], math.nan)
        roc = np.empty(0), np.empty(0)
        with warnings.catch_warnings():  # of a split without samples, of classes that do not occur
            warnings.simplefilter("ignore")
            confusion = self._confusion.compute().cpu()
            occurring = confusion.sum(-1)[:, 1] if self._multi_label else confusion.sum(-1)
            varying = (occurring > 0) & (occurring < self.samples)
            if self.samples:
                values["loss"] = float(self._loss.compute())
            if self.samples and self._finite:
                values |= self._metrics.cpu().compute()
                for name in PER_CLASS:
                    counted = varying if name == "auroc_macro" else occurring > 0
                    values[name] = values[name][counted].mean()
                if 0 < occurring.sum() < self.samples * self._classes:
                    fpr, tpr, _ = self._roc.cpu().compute()
                    values["auroc_micro"] = torch.trapezoid(tpr, fpr)
                    count = min(len(fpr), _CURVE_POINTS)
                    points = np.linspace(0, len(fpr) - 1, count).round().astype(int)
                    roc = fpr[points].numpy(), tpr[points].numpy()
        named = {f"{self.split}_{name}": float(value) for name, value in values.items()}
        return Evaluation(self.split, named, self.samples, confusion.numpy(), roc)
