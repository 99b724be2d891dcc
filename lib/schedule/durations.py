"""How long a notebook should take on a device type: by its budget, its earlier runs there, or a guess."""

from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lib import locks, paths, store
from lib.config import notebooks
from lib.tables import columns

GUESS_S = 60.0
BESIDE_S = 15.0  # of a notebook besides its budget: kernel, imports, figures
_LEAST_S = 1e-3


class Duration(NamedTuple):
    """Predicted seconds, and their source in words, or why there are none (inf)."""

    seconds: float
    source: str


def by_budget(path: str | Path, parameters: Mapping[str, Any]) -> Duration | None:
    """Return how long a notebook of this project takes by its budget; None if it has none, or replays.

    Raises InputError for wrong parameters.
    """
    model = notebooks.own_model(path)
    budget_s = getattr(notebooks.given(path, parameters, str(path)), "budget_s", 0.0) if model else 0.0
    replays = parameters.get("source") == "replay"
    return None if replays or not budget_s else Duration(budget_s + BESIDE_S, f"its budget of {budget_s:g} s")


class Durations:
    """Durations of notebooks: predicted, and learned from runs, which a table (``durations``) keeps."""

    def __init__(self, path: Path | None = None):
        """Use the table at ``path`` (default: this project's), which may not exist yet."""
        self.path = path or paths.DATA / "schedule" / "durations.csv"

    @cached_property
    def _medians(self) -> dict[tuple[str, str], tuple[float, int]]:
        if not self.path.is_file():
            return {}
        groups = store.read(self.path, "durations").groupby(["notebook", "device_type"])["seconds"]
        return {key: (float(times.median()), len(times)) for key, times in groups}

    def predicted(self, notebook: str, parameters: Mapping[str, Any], device_type: str) -> Duration:
        """Return how long a notebook should take on a device type; InputError for wrong parameters."""
        if budget := by_budget(notebook, parameters):
            return budget
        seconds, count = self._medians.get((notebook, device_type), (GUESS_S, 0))
        return Duration(max(_LEAST_S, seconds), f"the median of {count} earlier runs" if count else
                        "a guess: it has no budget, and did not run there before")

    def learn(self, rows) -> None:
        """Append rows (``run, job_id, notebook, device_type, seconds``) that the table does not hold yet."""
        with closing(store.Appender(self.path, "durations", resume=True, timeout_s=locks.PATIENCE_S)) as file:
            keys = set(map(tuple, store.read(self.path, "durations")[["run", "job_id"]].to_numpy()))
            for row in rows[columns("durations")].itertuples(index=False):
                if (row.run, row.job_id) not in keys:
                    file.append(tuple(row))
        self.__dict__.pop("_medians", None)
