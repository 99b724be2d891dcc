"""The reports of a run while it trains: ``log.txt``, ``history.csv``, TensorBoard, and figures.

Every value belongs to a batch, counted from 0 over the whole run; those of an epoch belong to its
last batch. So a single number says which values a resumed run drops.
"""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from lib import files, locks, store
from lib.finetune import figures
from lib.finetune.metrics import Evaluation
from lib.measure.training.matrix import markdown

LOG, HISTORY = "log.txt", "history.csv"
_FLUSH_S, _QUEUE = 5, 1000  # of TensorBoard's writer
_LARGEST_TABLE = 40  # classes
_DPI = 110


class _Tee:
    """A stream that also writes each text to a file."""

    def __init__(self, stream: TextIO, file: TextIO):
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        self._file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Write what is printed meanwhile, and the error that ends it, also to ``log.txt`` in a folder."""
    path = files.folder(folder) / LOG
    with contextlib.ExitStack() as stack:
        with files.writing(path):
            file = stack.enter_context(open(path, "a", buffering=1, errors="replace"))
        stack.enter_context(contextlib.redirect_stdout(_Tee(sys.stdout, file)))
        stack.enter_context(contextlib.redirect_stderr(_Tee(sys.stderr, file)))
        try:
            yield
        except BaseException as error:
            file.write(f"{type(error).__name__}: {error}\n")
            raise


class Reports:
    """The history and the TensorBoard files of a run from ``step`` on: what a resumed run repeats is dropped.

    ``events`` is TensorBoard's folder. One process per run writes them. Raises InputError where
    they cannot be written, or another process writes them.
    """

    def __init__(self, folder: Path, events: Path, step: int = 0):
        self.folder, self.events = folder, events
        self._history = resumed(folder / HISTORY, "history", lambda rows: rows[
            (rows["step"] < step) & ~rows["name"].str.startswith("test/")])
        with files.writing(events):
            self._writer = SummaryWriter(str(files.folder(events)), max_queue=_QUEUE,
                                         purge_step=step, flush_secs=_FLUSH_S)
        print(f"tensorboard --logdir {events}")

    def scalars(self, values: Mapping[str, float], step: int, epoch: int, unix_s: float = 0.0) -> None:
        """Write values by name, such as train/epoch_loss, to both."""
        unix_s = unix_s or time.time()
        self._history.extend([(step, epoch, name, float(f"{value:.9g}"), round(unix_s, 3))
                              for name, value in values.items()])
        with files.writing(self.events):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, unix_s)

    def evaluation(self, evaluation: Evaluation, step: int, epoch: int, labels: Sequence[str]) -> None:
        """Write an evaluation: its file, scalars, table, and figures, these also to ``figures/``."""
        split = evaluation.split
        evaluation.write(self.folder)
        self.scalars(slashed(evaluation.values), step, epoch)
        drawn = {"confusion_matrix": figures.confusion(evaluation, labels),
                 "roc_micro": figures.roc(evaluation)}
        with files.writing(self.events):
            self._writer.add_text(f"{split}/confusion_matrix", table(evaluation, labels), step)
        for name, figure in drawn.items():
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=_DPI)
            files.replace(self.folder / "figures" / f"{split}_{name}.png", content.getvalue())
            pixels = np.asarray(Image.open(content).convert("RGB"))
            with files.writing(self.events):
                self._writer.add_image(f"{split}/{name}", pixels, step, dataformats="HWC")

    def flush(self) -> None:
        """Write the values to the disk, before a state is saved."""
        with files.writing(self.events):
            self._writer.flush()

    def close(self) -> None:
        """Write the values and end."""
        self._history.close()
        with files.writing(self.events):
            self._writer.close()


def slashed(values: Mapping[str, float]) -> dict[str, float]:
    """Return an evaluation's values by the names of reports: val/acc@1 for val_acc@1."""
    return {name.replace("_", "/", 1): value for name, value in values.items()}


def resumed(path: Path, name: str, keep: Callable[[pd.DataFrame], pd.DataFrame]) -> store.Appender:
    """Open a table of a run that goes on, with those of its rows that ``keep`` returns."""
    if path.exists() and b"\n" in path.read_bytes():  # a killed run may leave half a header
        with locks.writer(path):
            store.write(keep(store.read(path, name)), path, name, derived=True)
    return store.Appender(files.folder(path.parent) / path.name, name, resume=True)


def table(evaluation: Evaluation, labels: Sequence[str]) -> str:
    """Return the confusion matrix as a Markdown table; of more than 40 classes, only their number."""
    matrix, rows, columns = figures.counts(evaluation, labels)
    if len(rows) > _LARGEST_TABLE:
        return f"{len(rows)} classes: see the figure."
    content = [[name, *counts] for name, counts in zip(rows, matrix, strict=True)]
    return markdown(pd.DataFrame(content, columns=["truth", *columns]))
