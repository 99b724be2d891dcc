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

import pandas as pd
from matplotlib.figure import Figure
from seaborn import heatmap
from sklearn.metrics import RocCurveDisplay
from torch.utils.tensorboard import SummaryWriter

from lib import files, locks, store
from lib.finetune.metrics import Evaluation
from lib.measure.training.throughput import markdown

LOG, HISTORY = "log.txt", "history.csv"
_LARGEST_TABLE, _NUMBERED, _LONGEST = 40, 16, 24  # classes; those with counts; letters of a name
_DECISIONS = ["true -", "false +", "false -", "true +"]


class _Tee:
    """A stream that also writes each text to a file, unbuffered: closing it then writes nothing."""

    def __init__(self, stream: TextIO, file: io.FileIO):
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        with files.writing(Path(self._file.name)):
            self._file.write(text.encode(errors="replace"))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Write what is printed meanwhile, and the error that ends it, to ``log.txt``, too."""
    path = files.folder(folder) / LOG
    with files.writing(path):
        path.touch()
    with (open(path, "ab", buffering=0) as file,
          contextlib.redirect_stdout(_Tee(sys.stdout, file)),
          contextlib.redirect_stderr(_Tee(sys.stderr, file))):
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):
                file.write(f"{type(error).__name__}: {error}\n".encode(errors="replace"))
            raise


class Reports:
    """The history and the TensorBoard files of a run; ``events`` is TensorBoard's folder.

    What a run resumed at ``step`` repeats is dropped. Raises InputError where they cannot be
    written, or another process writes them.
    """

    def __init__(self, folder: Path, events: Path, step: int = 0):
        self.folder, self.events = folder, events
        self._history = resumed(folder / HISTORY, "history", lambda rows: rows[
            (rows["step"] < step) & ~rows["name"].str.startswith("test/")])
        with files.writing(events):
            self._writer = SummaryWriter(str(files.folder(events)), max_queue=1000,
                                         purge_step=step, flush_secs=5)
        print(f"tensorboard --logdir {events}")

    def scalars(self, values: Mapping[str, float], step: int, epoch: int, at_s: float = 0) -> None:
        """Write values by name, such as train/epoch_loss, to both; ``at_s`` 0 is now."""
        at_s = at_s or time.time()
        self._history.extend([(step, epoch, name, float(f"{value:.9g}"), round(at_s, 3))
                              for name, value in values.items()])
        with files.writing(self.events):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, at_s)

    def evaluation(self, evaluation: Evaluation, step: int, epoch: int,
                   labels: Sequence[str]) -> None:
        """Write an evaluation: its file, scalars, table and figures, also to ``figures/``."""
        split = evaluation.split
        evaluation.write(self.folder)
        self.scalars(slashed(evaluation.values), step, epoch)
        drawn = {"confusion_matrix": _confusion(evaluation, labels), "roc_micro": _roc(evaluation)}
        for name, figure in drawn.items():
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=110)
            files.replace(self.folder / "figures" / f"{split}_{name}.png", picture.getvalue())
            with files.writing(self.events):
                self._writer.add_figure(f"{split}/{name}", figure, step)
        with files.writing(self.events):
            self._writer.add_text(f"{split}/confusion_matrix", table(evaluation, labels), step)

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
    """Return the confusion matrix as a Markdown table; of more than 40 classes, their number."""
    if len(labels) > _LARGEST_TABLE:
        return f"{len(labels)} classes: see the figure."
    return markdown(_counts(evaluation, labels).reset_index(names="truth"))


def _counts(evaluation: Evaluation, labels: Sequence[str]) -> pd.DataFrame:
    """Return the confusion matrix: rows are true classes, columns predicted ones.

    Multi-label: one row per label; the columns are its true and false negatives and positives.
    """
    names = [name if len(name) <= _LONGEST else f"{name[:_LONGEST - 1]}…" for name in labels]
    columns = names if evaluation.confusion.ndim == 2 else _DECISIONS
    return pd.DataFrame(evaluation.confusion.reshape(len(names), -1), names, columns)


def _confusion(evaluation: Evaluation, labels: Sequence[str]) -> Figure:
    """Return the confusion matrix, coloured by the share of each row."""
    matrix = _counts(evaluation, [name.replace("$", r"\$") for name in labels])
    figure = Figure(figsize=(3 + 0.4 * min(matrix.shape[1], 40), 2.5 + 0.4 * min(len(matrix), 40)),
                    layout="constrained")
    axis = figure.subplots()
    heatmap(matrix.div(matrix.sum(axis=1).clip(lower=1), axis=0), vmin=0, vmax=1, cmap="Blues",
            cbar=False, annot=matrix if len(matrix) <= _NUMBERED else None, fmt=",", ax=axis)
    axis.set(ylabel="truth", xlabel="predicted", title=f"{evaluation.split}: confusion matrix")
    return figure


def _roc(evaluation: Evaluation) -> Figure:
    """Return the micro-averaged ROC curve."""
    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axis = figure.subplots()
    area = evaluation.values[f"{evaluation.split}_auroc_micro"]
    display = RocCurveDisplay(fpr=evaluation.roc[0], tpr=evaluation.roc[1], roc_auc=area)
    display.plot(ax=axis, plot_chance_level=True)
    axis.set(title=f"{evaluation.split}: ROC, micro-averaged", aspect="equal")
    return figure
