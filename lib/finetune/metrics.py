"""The metrics of an evaluation, by name: TorchMetrics over a whole split, gathered from every process.

TensorBoard, ``history.csv`` and ``monitor_metric`` use the name after the split: ``val_f1_macro``. ``acc@1`` is the
share of right samples (micro), which is what training reports too; the mean over classes is ``acc_macro``. (The platform that
these names come from wrote the macro one under ``val_acc@1``.)
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torchmetrics.functional.classification as tm
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic_core import from_json, to_json
from torch import distributed
from torchmetrics.utilities.distributed import gather_all_tensors

from lib import store
from lib.errors import InputError, choices, refused

LOSS, ACCURACY = "loss", "acc@1"
_CURVE_POINTS = 501
Score = Callable[..., torch.Tensor]


class Scored:
    """A split's probabilities ``scores`` (N, classes or labels); ``targets`` (N,) classes, or (N, labels) of 0 and 1.

    ``task`` are the arguments by which TorchMetrics knows the task, ``truth`` (N, classes or labels) is 0 or 1, one class
    against the rest, and ``occurs`` says which classes occur: means over classes are over these.
    """

    def __init__(self, scores: torch.Tensor, targets: torch.Tensor):
        self.scores, self.targets, classes = scores, targets, scores.shape[1]
        multi_label = targets.ndim == 2
        self.task = ({"task": "multilabel", "num_labels": classes} if multi_label else
                     {"task": "multiclass", "num_classes": classes})
        self.truth = targets.long() if multi_label else torch.nn.functional.one_hot(targets, classes)
        self.occurs = self.truth.any(0)

    @property
    def both_ways(self) -> bool:
        """Return whether the split has both labels of 0 and of 1, which a ROC curve needs."""
        return bool(self.truth.any() and not self.truth.all())


def _micro(score: Score, split: Scored, **options: int) -> torch.Tensor:
    return score(split.scores, split.targets, **split.task, average="micro", **options)


def _macro(score: Score, split: Scored) -> torch.Tensor:
    """Return the mean of a score of TorchMetrics over the classes that occur."""
    return score(split.scores, split.targets, **split.task, average="none")[split.occurs].mean()


def _one_against_rest(score: Score, split: Scored) -> torch.Tensor:
    """Return the mean of a binary score over the classes that it is defined for, each against the rest; NaN where none is."""
    defined = split.occurs & ~split.truth.all(0) if score is tm.binary_auroc else split.occurs
    values = [score(split.scores[:, index], split.truth[:, index]) for index in defined.nonzero().flatten().tolist()]
    return torch.stack(values).mean() if values else torch.tensor(math.nan)


def _auroc_micro(split: Scored) -> torch.Tensor:
    """Return the area under the ROC curve of all decisions together, one per sample and class."""
    return tm.binary_auroc(split.scores.flatten(), split.truth.flatten()) if split.both_ways else torch.tensor(math.nan)


# numbers of a split, the larger the better: a new metric is an entry
METRICS: dict[str, Score] = {
    ACCURACY: partial(_micro, tm.accuracy),  # share of right samples; multi-label: of right decisions at 0.5
    "acc_macro": partial(_macro, tm.accuracy),  # mean share of right samples of a class; multi-label: of decisions
    "f1_macro": partial(_macro, tm.f1_score),
    "map": partial(_one_against_rest, tm.binary_average_precision),  # mean average precision
    "auroc_macro": partial(_one_against_rest, tm.binary_auroc),
    "auroc_micro": _auroc_micro,
    "cohenkappa": lambda split: tm.cohen_kappa(split.scores, split.targets, **split.task),
    "recall_micro": partial(_micro, tm.recall),  # share of all true labels that were given
    "recall_macro": partial(_macro, tm.recall)}
SINGLE_LABEL = {"cohenkappa"}  # not defined where a sample may have several labels


def names(eval_topk: Iterable[int], classes: float, multi_label: bool) -> list[str]:
    """Return the names of metrics, without the split, for so many ``classes`` (inf: any); ``acc@K`` for each K below."""
    topk = [f"acc@{k}" for k in sorted(set(eval_topk)) if 1 < k < classes and not multi_label]
    defined = METRICS.keys() - SINGLE_LABEL if multi_label else METRICS
    return [LOSS, ACCURACY, *topk, *[name for name in METRICS if name in defined and name != ACCURACY]]


def check_monitor(monitor: str, eval_topk: Iterable[int], classes: float = math.inf, multi_label: bool = False) -> None:
    """Raise InputError where ``monitor``, such as val_acc@1, is not measured on so many classes (inf: on any number)."""
    measured = [f"val_{name}" for name in names(eval_topk, classes, multi_label)]
    if monitor not in measured:
        raise InputError(f"monitor_metric {monitor!r} is not measured; there are: {choices(measured)}")


_Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
_Counts = Annotated[np.ndarray, BeforeValidator(partial(np.asarray, dtype=np.int64)), PlainSerializer(np.ndarray.tolist)]
_Axis = Annotated[np.ndarray, BeforeValidator(partial(np.asarray, dtype=float)),
                  PlainSerializer(lambda axis: axis.round(6).tolist())]


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class Evaluation:
    """The results of a pass over ``split``: ``values`` by name (``val_acc@1``), and the data of the figures.

    ``confusion`` counts: (classes, classes), one row per true class; multi-label (labels, 2, 2). ``roc`` is the micro-averaged
    curve, (false positive rates, true positive rates).
    """

    split: str
    values: dict[str, _Number]
    samples: int
    confusion: _Counts
    roc: tuple[_Axis, _Axis]

    def write(self, folder: Path) -> Path:
        """Write ``evaluation_<split>.json`` into ``folder``; undefined values are null."""
        return store.write_json(plain(_FILE.dump_python(self)), folder / f"evaluation_{self.split}.json")

    @classmethod
    def read(cls, path: Path) -> "Evaluation":
        """Read what ``write`` wrote; InputError for any other file."""
        with refused(f"{path} is no evaluation: "):
            return _FILE.validate_python(store.read_json(path))


_FILE = TypeAdapter(Evaluation)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinite numbers become null."""
    return from_json(to_json(value, inf_nan_mode="null"))


def evaluate(split: str, batches: Iterable[tuple[torch.Tensor, ...]], classes: int, multi_label: bool,
             eval_topk: Sequence[int] = (), device: torch.device | str = "cpu") -> Evaluation:
    """Measure all batches of all processes, each of which has to call this; nothing waits for the device before the end.

    A batch is its mean loss, probabilities (N, classes), and targets (N,) or (N, labels). Undefined values are NaN. Means over
    classes leave out absent classes. A NaN score leaves only the loss.
    """
    shape, measured = (classes,) if multi_label else (), names(eval_topk, classes, multi_label)
    # begin with no samples: a process without any takes part in gathering
    parts = [(torch.zeros(0, classes, device=device), torch.zeros(0, *shape, dtype=torch.long, device=device),
              torch.zeros(0, device=device))]
    parts += [(scores.float(), targets.long().reshape(-1, *shape), (loss.float() * len(scores)).reshape(1))
              for loss, scores, targets in batches]
    scores, targets, losses = (_gathered(torch.cat(part)).cpu() for part in zip(*parts, strict=True))
    values = dict.fromkeys(measured, math.nan)
    confusion, roc = np.zeros((classes, 2, 2) if multi_label else (classes, classes)), ((), ())
    if len(targets):
        values[LOSS] = float(losses.double().sum()) / len(targets)
    if len(targets) and scores.isfinite().all():
        scored = Scored(scores, targets)
        values |= {name: float(METRICS[name](scored) if name in METRICS else
                               _micro(tm.accuracy, scored, top_k=int(name.removeprefix("acc@"))))
                   for name in measured if name != LOSS}
        confusion, roc = tm.confusion_matrix(scores, targets, **scored.task), _roc(scored)
    return Evaluation(split, {f"{split}_{name}": value for name, value in values.items()}, len(targets), confusion, roc)


def _gathered(part: torch.Tensor) -> torch.Tensor:
    if not (distributed.is_available() and distributed.is_initialized()):
        return part
    return torch.cat(gather_all_tensors(part.contiguous()))


def _roc(split: Scored) -> tuple[Sequence[float], Sequence[float]]:
    """Return the micro-averaged ROC curve with as many points as a picture shows; empty where it is undefined."""
    if not split.both_ways:
        return (), ()
    fpr, tpr, _ = tm.binary_roc(split.scores.flatten(), split.truth.flatten())
    points = np.linspace(0, len(fpr) - 1, min(len(fpr), _CURVE_POINTS)).round().astype(int)
    return fpr[points], tpr[points]
