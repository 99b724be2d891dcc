"""The reports of a run while it trains: scalars, figures and tables for TensorBoard, and the same scalars in ``history.csv``.

Every value belongs to a batch, counted from 0 over the whole run, values of an epoch to its last batch. So a single number says
which values a resumed run drops.
"""

import io
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from torch.utils.tensorboard import SummaryWriter

from lib import files, locks, store
from lib.finetune import figures
from lib.finetune.metrics import LOSS, Evaluation
from lib.measure.training.matrix import markdown

HISTORY = "history.csv"
_FLUSH_S, _QUEUE = 5, 1000  # of TensorBoard's writer
_LARGEST_TABLE = 40  # classes
_DPI = 110


class Log:
    """The log of the run in ``folder`` from ``step`` on: existing values of that step and later ones are dropped.

    ``events`` is TensorBoard's folder (``folder/tensorboard``). One process per run writes it. Raises InputError where it
    cannot be written, or another process writes it.
    """

    def __init__(self, folder: Path, step: int = 0, events: Path | None = None):
        self.folder, self.events = folder, events or folder / "tensorboard"
        self._history, rows = resumed(folder / HISTORY, "history", lambda rows: rows[rows["step"] < step])
        rows = rows[rows["step"] == step - 1]  # an epoch may have ended with it, and is then reported once more
        self._before = set(zip(rows["step"], rows["name"], strict=True))
        with files.writing(self.events):
            self._writer = SummaryWriter(str(files.folder(self.events)), max_queue=_QUEUE, purge_step=step, flush_secs=_FLUSH_S)
        print(f"tensorboard --logdir {self.events}")

    def scalars(self, values: Mapping[str, float], step: int, epoch: int, unix_s: float | None = None) -> None:
        """Write values by name, such as train/epoch_loss, to both files; values from before a resume stay as they are."""
        unix_s = unix_s or time.time()
        new = {name: value for name, value in values.items() if (step, name) not in self._before}
        self._history.extend([(step, epoch, name, float(f"{value:.9g}"), round(unix_s, 3)) for name, value in new.items()])
        with files.writing(self.events):
            for name, value in new.items():
                self._writer.add_scalar(name, value, step, unix_s)

    def evaluation(self, evaluation: Evaluation, step: int, epoch: int, class_names: Sequence[str]) -> None:
        """Write an evaluation: its scalars, the table and the figures of its curves, these also to ``figures/`` of the run."""
        split = evaluation.split
        again = (step, f"{split}/{LOSS}") in self._before
        self.scalars({name.replace("_", "/", 1): value for name, value in evaluation.values.items()}, step, epoch)
        drawn = {"confusion_matrix": figures.confusion(evaluation, class_names), "roc_micro": figures.roc(evaluation)}
        for name, figure in drawn.items():
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=_DPI)
            files.replace(self.folder / "figures" / f"{split}_{name}.png", content.getvalue())
        if not again:
            with files.writing(self.events):
                self._writer.add_text(f"{split}/confusion_matrix", table(evaluation, class_names), step)
                for name, figure in drawn.items():
                    self._writer.add_figure(f"{split}/{name}", figure, step)

    def flush(self) -> None:
        """Write the values to the disk, before a checkpoint."""
        with files.writing(self.events):
            self._writer.flush()

    def close(self) -> None:
        """Write the values and end."""
        self._history.close()
        with files.writing(self.events):
            self._writer.close()


def resumed(path: Path, table: str, keep: Callable[[pd.DataFrame], pd.DataFrame]) -> tuple[store.Appender, pd.DataFrame]:
    """Open the table of a run that goes on, with those of its rows that ``keep`` returns; return it and these."""
    begun = path.exists() and b"\n" in path.read_bytes()  # a killed run may leave half a header
    rows = keep(store.read_all([path] if begun else [], table))
    if begun:
        with locks.writer(path):
            store.write(rows, path, table, derived=True)
    return store.Appender(files.folder(path.parent) / path.name, table, resume=True), rows


def table(evaluation: Evaluation, class_names: Sequence[str]) -> str:
    """Return the confusion matrix as a Markdown table; of more than 40 classes, only their number."""
    matrix, rows, columns = figures.counts(evaluation, class_names)
    if len(rows) > _LARGEST_TABLE:
        return f"{len(rows)} classes: see the figure."
    return markdown(pd.DataFrame([[name, *counts] for name, counts in zip(rows, matrix, strict=True)],
                                 columns=["truth", *columns]))
