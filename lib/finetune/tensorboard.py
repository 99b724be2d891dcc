"""The reports of a run while it trains: scalars, figures and tables for TensorBoard, and the same scalars in ``history.csv``.

Every value belongs to a batch, counted from 0 over the whole run, values of an epoch to its last batch. So a single number says
which values a resumed run drops.
"""

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from lib import files, locks, store
from lib.errors import InputError
from lib.finetune import figures
from lib.finetune.metrics import LOSS, Evaluation

HISTORY = "history.csv"
_FETCH_S = 0.5  # between two fetches of values from the device
_FLUSH_S, _QUEUE = 5, 1000  # of TensorBoard's writer
_LARGEST_TABLE = 40  # classes
_DPI = 110


class _Step(NamedTuple):
    """A step whose loss and right samples wait on the device."""

    step: int
    epoch: int
    samples: int
    lr: float
    loss: torch.Tensor
    correct: torch.Tensor
    unix_s: float


class Log:
    """The log of the run in ``folder`` from ``step`` on: existing values of that step and later ones are dropped.

    ``events`` is TensorBoard's folder (``folder/tensorboard``). ``latest`` is the last fetched step. One process per run writes
    it. Raises InputError where it cannot be written, or another process writes it.
    """

    def __init__(self, folder: Path, step: int = 0, events: Path | None = None):
        self.folder, self.events = folder, events or folder / "tensorboard"
        self.latest: dict[str, float] = {}
        self._waiting: list[_Step] = []
        self._since, self._images = None, 0
        self._fetched = time.perf_counter()
        self._history, self._before = _history(folder / HISTORY, step)
        with files.writing(self.events):
            self._writer = SummaryWriter(str(files.folder(self.events)), max_queue=_QUEUE, purge_step=step, flush_secs=_FLUSH_S)
        print(f"tensorboard --logdir {self.events}")

    def step(self, step: int, epoch: int, loss: torch.Tensor, correct: torch.Tensor, samples: int, lr: float) -> None:
        """Note batch ``step`` (from 0), its mean loss and right samples; they are fetched from the device twice a second.

        Raises InputError for a NaN or infinite loss of this or an earlier step.
        """
        now = time.perf_counter()
        self._waiting.append(_Step(step, epoch, samples, lr, loss, correct, time.time()))
        if self._since is None:
            self._since = now
        else:
            self._images += samples
        if now - self._fetched >= _FETCH_S:
            self._fetch()

    def pause(self) -> None:
        """Fetch the waiting steps, before work that is no training and does not count as the time of a step."""
        self._fetch()
        self._since, self._images = None, 0

    def flush(self) -> None:
        """Write the waiting values to the disk, before a checkpoint."""
        self.pause()
        with files.writing(self.events):
            self._writer.flush()

    def scalars(self, values: Mapping[str, float], step: int, epoch: int) -> None:
        """Write values by name, such as train/epoch_loss; values from before a resume stay as they are."""
        new = {name: value for name, value in values.items() if (step, name) not in self._before}
        self._write([(step, epoch, new, time.time())] if new else [])

    def evaluation(self, evaluation: Evaluation, step: int, epoch: int, class_names: Sequence[str]) -> None:
        """Write an evaluation: its scalars, the table and the figures of its curves, these also to ``figures/`` of the run."""
        split = evaluation.split
        again = (step, f"{split}/{LOSS}") in self._before
        self.scalars({f"{split}/{name.removeprefix(f'{split}_')}": value for name, value in evaluation.values.items()},
                     step, epoch)
        if not again:
            with files.writing(self.events):
                self._writer.add_text(f"{split}/confusion_matrix", table(evaluation, class_names), step)
        drawn = {"confusion_matrix": figures.confusion(evaluation, class_names), "roc_micro": figures.roc(evaluation)}
        for name, figure in drawn.items():
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=_DPI)
            files.replace(self.folder / "figures" / f"{split}_{name}.png", content.getvalue())
            if not again:
                width, height = (int(inches * _DPI) for inches in figure.get_size_inches())
                image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=content.getvalue())
                self._add([Summary.Value(tag=f"{split}/{name}", image=image)], step, time.time())

    def close(self) -> None:
        """Write the waiting values and end."""
        try:
            self.flush()
        finally:
            self._history.close()
            with files.writing(self.events):
                self._writer.close()

    def _fetch(self) -> None:
        """Fetch all waiting steps at once, and write them."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        both = torch.stack([value.float() for step in steps for value in (step.loss, step.correct)]).tolist()
        now = self._fetched = time.perf_counter()
        lines = []
        for step, loss, correct in zip(steps, both[::2], both[1::2], strict=True):
            shown = {"train/step_loss": loss, "train/step_acc@1": correct / step.samples, "train/lr": step.lr}
            lines.append((step.step, step.epoch, shown, step.unix_s))
        if self._images:
            lines[-1][2]["throughput/images_per_sec"] = self._images / (now - self._since)
            self._since, self._images = now, 0
        self.latest = {"step": steps[-1].step, "epoch": steps[-1].epoch,
                       **{name.partition("/")[2]: value for name, value in lines[-1][2].items()}}
        self._write(lines)
        for step, loss in zip(steps, both[::2], strict=True):
            if loss - loss != 0:
                raise InputError(f"the loss is {loss} at step {step.step} (epoch {step.epoch}, lr {step.lr:.3g}): training "
                                 "stops; a smaller lr, more warm-up, max_grad_norm or fp32 may help")

    def _write(self, lines: Sequence[tuple[int, int, Mapping[str, float], float]]) -> None:
        """Write lines of (step, epoch, values by name, time) to both files."""
        self._history.extend([(step, epoch, name, float(f"{value:.9g}"), round(unix_s, 3))
                              for step, epoch, values, unix_s in lines for name, value in values.items()])
        for step, _, values, unix_s in lines:
            self._add([Summary.Value(tag=name, simple_value=value) for name, value in values.items()], step, unix_s)

    def _add(self, values: list[Summary.Value], step: int, unix_s: float) -> None:
        """Write one event for all values of a step, which is faster than one event each."""
        with files.writing(self.events):
            self._writer.file_writer.add_summary(Summary(value=values), step, unix_s)


def _history(path: Path, step: int) -> tuple[store.Appender, set[tuple[int, str]]]:
    """Open the table of a run that goes on at ``step``; rows of that step and later are dropped.

    Returns also what is there of the step before, as (step, name): an epoch may end with it, and be reported once more.
    """
    before: set[tuple[int, str]] = set()
    if path.exists():
        with locks.writer(path):
            rows = store.read(path, "history")
            store.write(rows[rows["step"] < step], path, "history", derived=True)
            before = {(row.step, row.name) for row in rows[rows["step"] == step - 1].itertuples(index=False)}
    return store.Appender(files.folder(path.parent) / path.name, "history", resume=True), before


def table(evaluation: Evaluation, class_names: Sequence[str]) -> str:
    """Return the confusion matrix as a Markdown table; of more than 40 classes, only their number."""
    matrix, rows, columns = figures.counts(evaluation, class_names)
    if len(rows) > _LARGEST_TABLE:
        return f"{len(rows)} classes: see the figure."
    rows, columns = ([name.replace("\\", "\\\\").replace("|", "\\|") for name in names] for names in (rows, columns))
    lines = [f"| truth | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(map(str, row))} |" for name, row in zip(rows, matrix, strict=True))])
