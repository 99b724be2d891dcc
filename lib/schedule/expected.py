"""Expected seconds of a job: by earlier runs here, a budget, a model, a probe, or a guess."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from math import log
from pathlib import Path
from statistics import median, stdev
from typing import Any, NamedTuple

import pandas as pd

from lib import locks, paths, store
from lib.config import notebooks
from lib.tables import columns

GUESS_S = 60.0
BESIDE_S = 15.0  # of a notebook besides its budget: kernel, imports, figures
_LAST = 9  # earlier runs that count
_ENOUGH, _LEAST_SIGMA = 4, 0.05  # earlier runs that show their spread, and its least value
RUN_SIGMA, BUDGET_SIGMA, MODEL_SIGMA, GUESS_SIGMA = 0.15, 0.15, 0.4, 1.0  # assumed


class Expected(NamedTuple):
    """Seconds (inf: it cannot run), their source, and the standard deviation of their log."""

    seconds: float
    source: str
    sigma: float = 0.0


Source = Callable[[str], Expected | None]  # what is expected on a device type, None where unknown


class EarlierRuns:
    """Seconds of jobs that ended well here, by what ran and device type; the last nine count."""

    def __init__(self) -> None:
        self._seconds = defaultdict(lambda: deque(maxlen=_LAST))

    def add(self, what: str, device_type: str, seconds: float) -> None:
        """Take the seconds of a job."""
        self._seconds[what, device_type].append(max(1e-3, seconds))

    def of(self, what: str) -> Source:
        """Return what the earlier runs of something say as a source."""
        def expected(device_type: str) -> Expected | None:
            seconds, sigma = self._seconds.get((what, device_type)), RUN_SIGMA
            if not seconds:
                return None
            if len(seconds) >= _ENOUGH:
                sigma = max(_LEAST_SIGMA, stdev(map(log, seconds)))
            return Expected(median(seconds), f"the median of {len(seconds)} earlier runs", sigma)

        return expected


def expected_s(device_type: str, sources: Iterable[Source], guess_s: float = GUESS_S) -> Expected:
    """Expect the seconds of a job on a device type by the first source that knows them, or a guess.

    The order, for whoever calls: earlier runs of exactly this; a budget; earlier runs of something
    like it (``EarlierRuns.of``); a cost model; a probe.
    """
    for source in sources:
        if known := source(device_type):
            return known
    return Expected(guess_s, "a guess: nothing like it ran here before", GUESS_SIGMA)


def budget(path: str | Path, parameters: Mapping[str, Any]) -> Expected | None:
    """Return how long a notebook takes by its budget; None if it has none, or replays.

    Raises InputError for wrong parameters.
    """
    if not notebooks.own_model(path) or parameters.get("source") == "replay":
        return None
    budget_s = getattr(notebooks.given(path, parameters, str(path)), "budget_s", 0.0)
    if not budget_s:
        return None
    return Expected(budget_s + BESIDE_S, f"its budget of {budget_s:g} s", BUDGET_SIGMA)


def _durations_file() -> Path:
    return paths.DATA / "schedule/durations.csv"


def earlier_notebooks() -> EarlierRuns:
    """Return the earlier runs of notebooks (table ``durations``) by their path."""
    earlier = EarlierRuns()
    if _durations_file().is_file():
        for row in store.read(_durations_file(), "durations").itertuples():
            earlier.add(row.notebook, row.device_type, row.seconds)
    return earlier


def keep_notebooks(rows: pd.DataFrame) -> None:
    """Keep the seconds of notebooks (table ``durations``) that are not kept yet."""
    path = _durations_file()
    appender = store.Appender(path, "durations", resume=True, timeout_s=locks.PATIENCE_S)
    with closing(appender) as file:
        known = set(map(tuple, store.read(path, "durations")[["run", "job_id"]].to_numpy()))
        for row in rows[columns("durations")].itertuples(index=False):
            if (row.run, row.job_id) not in known:
                file.append(tuple(row))
