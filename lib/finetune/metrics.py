"""The metrics of an evaluation, by name: TorchMetrics over a whole split, gathered from every process.

TensorBoard, ``history.csv`` and ``monitor_metric`` use the name after the split: ``val_f1_macro``. ``acc@1`` is the
share of right samples (micro), which is what training reports too; the mean over classes is ``acc_macro``. (The platform that
these names come from wrote the macro one under ``val_acc@1``.)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
import torchmetrics.functional.classification as tm
from torch import distributed
from torchmetrics.utilities.distributed import gather_all_tensors

from lib import store
from lib.errors import InputError, choices

LOSS, ACCURACY = "loss", "acc@1"
_CURVE_POINTS = 501


@dataclass(frozen=True)
class Scored:
    """A split's probabilities ``scores`` (N, classes or labels); ``targets`` (N,) classes, or (N, labels) of 0 and 1."""

    scores: torch.Tensor
    targets: torch.Tensor

    @property
    def multi_label(self) -> bool:
        """Return whether a sample may carry several labels."""
        return self.targets.ndim == 2

    @property
    def task(self) -> dict:
        """Return the arguments by which TorchMetrics knows the task."""
        name, count = ("multilabel", "num_labels") if self.multi_label else ("multiclass", "num_classes")
        return {"task": name, count: self.scores.shape[1]}

    @cached_property
    def truth(self) -> torch.Tensor:
        """Return (N, classes or labels) of 0 and 1, one class against the rest."""
        return self.targets.long() if self.multi_label else torch.nn.functional.one_hot(self.targets, self.scores.shape[1])

    @cached_property
    def occurs(self) -> torch.Tensor:
        """Return which classes occur in the split: means over classes are over these."""
        return self.truth.any(0)

    @property
    def both_ways(self) -> bool:
        """Return whether the split has both labels of 0 and of 1, which a ROC curve needs."""
        return bool(self.truth.any()) and not bool(self.truth.all())


@dataclass(frozen=True)
class Metric:
    """One number of a split, the larger the better; ``multi_label`` says whether it is defined there."""

    value: Callable[[Scored], torch.Tensor]
    multi_label: bool = True


def _micro(score: Callable[..., torch.Tensor], split: Scored, **options: int) -> torch.Tensor:
    return score(split.scores, split.targets, **split.task, average="micro", **options)


def _macro(score: Callable[..., torch.Tensor], split: Scored) -> torch.Tensor:
    """Return the mean of a score of TorchMetrics over the classes that occur."""
    return score(split.scores, split.targets, **split.task, average="none")[split.occurs].mean()


def _one_against_rest(score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], split: Scored) -> torch.Tensor:
    """Return the mean of a binary score over the classes that it is defined for, each against the rest; NaN where none is."""
    defined = split.occurs & ~split.truth.all(0) if score is tm.binary_auroc else split.occurs
    values = [score(split.scores[:, index], split.truth[:, index]) for index in defined.nonzero().flatten().tolist()]
    return torch.stack(values).mean() if values else torch.tensor(float("nan"))


def _auroc_micro(split: Scored) -> torch.Tensor:
    """Return the area under the ROC curve of all decisions together, one per sample and class."""
    return tm.binary_auroc(split.scores.flatten(), split.truth.flatten()) if split.both_ways else torch.tensor(float("nan"))


def _kappa(split: Scored) -> torch.Tensor:
    return tm.cohen_kappa(split.scores, split.targets, **split.task)


METRICS: dict[str, Metric] = {
    ACCURACY: Metric(partial(_micro, tm.accuracy)),  # share of right samples; multi-label: of right decisions at 0.5
    "acc_macro": Metric(partial(_macro, tm.accuracy)),  # mean share of right samples of a class; multi-label: of decisions
    "f1_macro": Metric(partial(_macro, tm.f1_score)),
    "map": Metric(partial(_one_against_rest, tm.binary_average_precision)),  # mean average precision
    "auroc_macro": Metric(partial(_one_against_rest, tm.binary_auroc)),
    "auroc_micro": Metric(_auroc_micro),
    "cohenkappa": Metric(_kappa, multi_label=False),
    "recall_micro": Metric(partial(_micro, tm.recall)),  # share of all true labels that were given
    "recall_macro": Metric(partial(_macro, tm.recall))}


def metric(name: str, multi_label: bool = True):
    """Register the function below it, from ``Scored`` to a number, under ``name``: all that a new metric takes."""
    def register(value: Callable[[Scored], torch.Tensor]) -> Callable[[Scored], torch.Tensor]:
        METRICS[name] = Metric(value, multi_label)
        return value

    return register


def names(eval_topk: Iterable[int] = (), classes: int | None = None, multi_label: bool = False) -> list[str]:
    """Return the names of metrics, without the split, for so many ``classes`` (None: any); ``acc@K`` for each K below."""
    largest = (0 if multi_label else classes) if classes is not None else max(eval_topk, default=0) + 1
    topk = [f"acc@{k}" for k in sorted(set(eval_topk)) if 1 < k < largest]
    return [LOSS, ACCURACY, *topk, *[name for name, metric in METRICS.items()
                                     if name != ACCURACY and (metric.multi_label or not multi_label)]]


def check_monitor(monitor: str, eval_topk: Iterable[int], classes: int | None = None, multi_label: bool = False) -> None:
    """Raise InputError where ``monitor``, such as val_acc@1, is not measured on so many classes (None: on any number)."""
    measured = [f"val_{name}" for name in names(eval_topk, classes, multi_label)]
    if monitor not in measured:
        raise InputError(f"monitor_metric {monitor!r} is not measured; there are: {choices(measured)}")


@dataclass(frozen=True)
class Evaluation:
    """The results of a pass over ``split``: ``values`` by name (``val_acc@1``), and the data of the figures.

    ``confusion`` counts: (classes, classes), one row per true class; multi-label (labels, 2, 2). ``roc`` is the micro-averaged
    curve, (false positive rates, true positive rates).
    """

    split: str
    values: dict[str, float]
    samples: int
    confusion: np.ndarray
    roc: tuple[np.ndarray, np.ndarray]

    def write(self, folder: Path) -> Path:
        """Write ``evaluation_<split>.json`` into ``folder``; undefined values are null."""
        values = {name: value if np.isfinite(value) else None for name, value in self.values.items()}
        content = {"split": self.split, "values": values, "samples": self.samples, "confusion": self.confusion.tolist(),
                   "roc": [np.round(axis, 6).tolist() for axis in self.roc]}
        return store.write_json(content, folder / f"evaluation_{self.split}.json")

    @classmethod
    def read(cls, path: Path) -> "Evaluation":
        """Read what ``write`` wrote; InputError for any other file."""
        content = store.read_json(path)
        try:
            values = {str(name): float("nan") if value is None else float(value) for name, value in content["values"].items()}
            fpr, tpr = (np.asarray(axis, float) for axis in content["roc"])
            confusion = np.asarray(content["confusion"], np.int64)
            return cls(str(content["split"]), values, int(content["samples"]), confusion, (fpr, tpr))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is no evaluation: {type(error).__name__}: {error}") from None


class Evaluator:
    """Collects a pass over ``split`` and measures it; nothing waits for the device before ``compute``."""

    def __init__(self, split: str, classes: int, multi_label: bool, eval_topk: Sequence[int] = (),
                 device: torch.device | str = "cpu"):
        self._split, self._names = split, names(eval_topk, classes, multi_label)
        self._shape = (classes,) if multi_label else ()
        # of no samples: a process without any takes part in gathering
        self._scores = [torch.zeros(0, classes, device=device)]
        self._targets = [torch.zeros(0, *self._shape, dtype=torch.long, device=device)]
        self._losses = [torch.zeros(0, device=device)]

    def update(self, scores: torch.Tensor, targets: torch.Tensor, loss: torch.Tensor) -> None:
        """Add a batch: probabilities (N, C), targets (N,) or (N, L), and its mean loss."""
        self._scores.append(scores.detach().float())
        self._targets.append(targets.detach().long().reshape(-1, *self._shape))
        self._losses.append((loss.detach().float() * len(scores)).reshape(1))

    def compute(self) -> Evaluation:
        """Measure all batches of all processes, each of which has to call this; undefined values are NaN.

        Means over classes leave out absent classes. A NaN score leaves only the loss.
        """
        scores, targets, losses = (_gathered(torch.cat(part)).cpu() for part in (self._scores, self._targets, self._losses))
        values = dict.fromkeys(self._names, float("nan"))
        classes = scores.shape[1]
        confusion, roc = np.zeros((classes, 2, 2) if self._shape else (classes, classes), np.int64), (np.zeros(0), np.zeros(0))
        if len(targets):
            values[LOSS] = float(losses.double().sum()) / len(targets)
        if len(targets) and scores.isfinite().all():
            split = Scored(scores, targets)
            values.update({name: float(METRICS[name].value(split) if name in METRICS else
                                       _micro(tm.accuracy, split, top_k=int(name.removeprefix("acc@"))))
                           for name in self._names if name != LOSS})
            confusion, roc = tm.confusion_matrix(scores, targets, **split.task).numpy(), _roc(split)
        return Evaluation(self._split, {f"{self._split}_{name}": value for name, value in values.items()}, len(targets),
                          confusion, roc)


def _gathered(part: torch.Tensor) -> torch.Tensor:
    if not (distributed.is_available() and distributed.is_initialized()):
        return part
    return torch.cat(gather_all_tensors(part.contiguous()))


def _roc(split: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Return the micro-averaged ROC curve with as many points as a picture shows; empty where it is undefined."""
    if not split.both_ways:
        return np.zeros(0), np.zeros(0)
    fpr, tpr, _ = tm.binary_roc(split.scores.flatten(), split.truth.flatten())
    points = np.unique(np.linspace(0, len(fpr) - 1, _CURVE_POINTS).round().astype(int))
    return fpr.numpy()[points], tpr.numpy()[points]
