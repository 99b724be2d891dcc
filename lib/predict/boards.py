"""How far times on boards of others lie from predictions, learned from what outsiders measured, and intervals that hold there.

The error of a kernel or network on a stranger's machine has two parts: what all times of that board and host share (clock,
cooling, libraries), and the rest. Both are learned per kind from labels that no model was trained on, one vote per family; a
calibration measures the first part and takes it away.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from lib import paths
from lib.predict.model_file import AtLeastOne, Format, NotNegative, Saved

PATH = paths.REFERENCE / "models" / "boards.json"
ALL = "all"  # key of kinds that no outsider measured
_COVER = 0.9
_LEAST_BOARDS = 3
_UNKNOWN = 2.0  # times as far lie boards of an architecture that no measured card is of
_ignored: ContextVar[bool] = ContextVar("ignored", default=False)


@dataclass(frozen=True)
class Spread:
    """Half widths in log time that hold 90 % of what boards share and of what is left, and of how many boards."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    board: NotNegative
    rest: NotNegative
    boards: AtLeastOne

    def widened(self, half: float | np.ndarray, is_known: bool | np.ndarray = True) -> float | np.ndarray:
        """Return the half width of an interval on a board of others; ``is_known``: cards of its architecture were measured."""
        return np.hypot(np.maximum(half, self.rest), self.board * np.where(is_known, 1.0, _UNKNOWN))


@dataclass(frozen=True)
class Boards(Saved):
    """The spread of each kind of kernel or network."""

    spreads: dict[str, Spread]

    FORMAT: ClassVar = Format("spread of boards", "compute it again with: python -m lib models --outsiders FOLDER --ship")

    def of(self, kind: str) -> Spread:
        """Return the spread of a kind; of one that no outsider measured, that of all kinds of kernels."""
        return self.spreads.get(kind) or self.spreads[ALL]


def kernel_kind(op: str, passes: str) -> str:
    """Return the kind of a kernel."""
    return f"{'product' if op in ('matmul', 'linear', 'bmm', 'attention') else op} {passes}"


def network_kind(mode: str, dtype: str) -> str:
    """Return the kind of a network's time."""
    return f"network {mode}, {'fp32' if dtype == 'fp32' else '16 bits'}"


def learn(errors: pd.DataFrame) -> Boards:
    """Learn spreads from ``kind, board, family, is_known, error`` (log measured over predicted); families have one vote each.

    A kind that fewer than three boards ran has none of its own. ``is_known``: cards of the board's architecture were measured.
    """
    spreads = {kind: _spread(part) for kind, part in errors.groupby("kind") if part["board"].nunique() >= _LEAST_BOARDS}
    return Boards({**spreads, ALL: _spread(errors[~errors["kind"].str.startswith("network")])})


def _spread(part: pd.DataFrame) -> Spread:
    votes = 1.0 / part.groupby(["board", "family"])["error"].transform("size")
    shared = {board: _quantile(rows["error"], votes[rows.index], 0.5) for board, rows in part.groupby("board")}
    rest = (part["error"] - part["board"].map(shared)).abs()
    votes /= votes.groupby(part["board"]).transform("sum")  # boards count alike
    known = part.groupby("board")["is_known"].first()
    farthest = np.sort([abs(error) / (1.0 if known[board] else _UNKNOWN) for board, error in shared.items()])
    place = min(len(farthest), math.ceil((len(farthest) + 1) * _COVER)) - 1
    return Spread(float(farthest[place]), _quantile(rest, votes, _COVER), len(shared))


def _quantile(values: pd.Series, votes: pd.Series, share: float) -> float:
    order = np.argsort(values.to_numpy())
    heights = np.cumsum(votes.to_numpy()[order])
    return float(values.to_numpy()[order][np.searchsorted(heights, share * heights[-1])])


@contextmanager
def ignored() -> Iterator[None]:
    """Within, intervals are those of the models alone."""
    token = _ignored.set(True)
    try:
        yield
    finally:
        _ignored.reset(token)


def shipped() -> Boards | None:
    """Return what ships; None within ``ignored`` and where nothing ships."""
    return None if _ignored.get() or not PATH.is_file() else _load(PATH, PATH.stat().st_mtime_ns)


@cache
def _load(path: Path, _: int) -> Boards:
    return Boards.load(path)


def widened(times: Mapping[str, float], kind: str, is_known: bool) -> dict[str, float]:
    """Return ``predicted_ms, low_ms, high_ms`` with the interval that holds on boards of others; an open end stays open."""
    ms, boards = times["predicted_ms"], shipped()
    if boards is None:
        return dict(times)
    below, above = boards.of(kind).widened(np.abs(np.log(np.array([times["low_ms"], times["high_ms"]]) / ms)), is_known)
    return {"predicted_ms": ms, "low_ms": ms * math.exp(-below), "high_ms": ms * math.exp(above)}
