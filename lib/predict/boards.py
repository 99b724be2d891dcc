"""How far times on boards of others lie from predictions, learned from what outsiders measured, and ranges that hold there.

The error of a kernel on a stranger's machine has two parts: what all times of that board and host share (clock, cooling,
libraries, and what the model does not know of the card), and the rest. Both are learned per kind from labels that no model was
trained on, one vote per family. What gradients of convolutions take is learned from labels, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lib import files, paths
from lib.predict.model_file import AtLeastOne, Format, NotNegative, Saved, vector
from lib.predict.scores import COVER, half_interval

PATH = paths.REFERENCE / "models" / "boards.json"
_ALL = "kernels"  # of all kinds
_LEAST_BOARDS = 3
UNKNOWN_ARCHITECTURE_FACTOR = 2.0  # on ranges of cards and boards of an architecture without a measured card


@dataclass(frozen=True)
class Spread:
    """Half widths in log time, from ``count`` devices: ``board`` of the error common to a device, ``rest`` of the remainder.

    ``board`` bounds the error of 90 % of new devices (with fewer than nine, the largest error of all); ``rest`` holds 90 % of
    the remainder.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    board: NotNegative
    rest: NotNegative
    count: AtLeastOne

    def half(self, half: Any, is_known: bool = True) -> Any:
        """Return the half width on a board of others; ``is_known``: cards of its architecture were measured."""
        return np.hypot(np.maximum(half, self.rest), self.board * (1.0 if is_known else UNKNOWN_ARCHITECTURE_FACTOR))


@dataclass(frozen=True)
class Boards(Saved):
    """The spread of each kind of kernel; a kind that too few devices ran has that of all kernels.

    ``gradients``: of convolutions, linear forms of ``operators.gradients.features``, which give the log of
    a gradient's time over that of the forward kernel in its place.
    """

    spreads: dict[str, Spread] = field(default_factory=dict)
    gradients: dict[str, vector()] = field(default_factory=dict)

    FORMAT: ClassVar = Format("spread of boards", "compute it again with: python -m lib models --outsiders FOLDER --ship", 2)

    def of(self, kind: str) -> Spread | None:
        """Return the spread of a kind, else of all kernels; None without."""
        return self.spreads.get(kind) or self.spreads.get(_ALL)

    def gradient_ms(self, name: str, ms: Any, features: np.ndarray) -> Any:
        """Return the ms of gradients from those of kernels; the same for a kind without labels."""
        return ms * np.exp(features @ self.gradients[name]) if name in self.gradients else ms

    def widened(self, ms: Any, low: Any, high: Any, kind: str, is_known: bool) -> tuple[Any, Any]:
        """Return the ends of ranges that hold on boards of others; an open end stays open."""
        if not (spread := self.of(kind)):
            return low, high
        below, above = (spread.half(np.abs(np.log(end / ms)), is_known) for end in (low, high))
        return ms * np.exp(-below), ms * np.exp(above)


def kernel_kind(op: str, passes: str) -> str:
    """Return the kind of a kernel."""
    return f"{'product' if op in ('matmul', 'linear', 'bmm', 'attention') else op} {passes}"


def learn(errors: pd.DataFrame) -> Boards:
    """Learn spreads from ``kind, board, family, is_known, error`` (log measured over predicted); families have one vote each.

    A kind needs three boards for its own spread. ``is_known``: cards of the board's architecture were measured.
    Rows that are ``mostly_launches`` are left out.
    """
    errors = errors[~errors["mostly_launches"]]
    together = pd.concat([errors, errors.assign(kind=_ALL)])
    return Boards({kind: _spread(part) for kind, part in together.groupby("kind") if part["board"].nunique() >= _LEAST_BOARDS})


def _spread(part: pd.DataFrame) -> Spread:
    part = part.reset_index(drop=True)
    votes = 1.0 / part.groupby(["board", "family"])["error"].transform("size")
    shared = {board: _quantile(rows["error"], votes[rows.index], 0.5) for board, rows in part.groupby("board")}
    rest = (part["error"] - part["board"].map(shared)).abs()
    votes /= votes.groupby(part["board"]).transform("sum")  # boards count alike
    is_known = part.groupby("board")["is_known"].first()
    errors = [error / (1.0 if is_known[board] else UNKNOWN_ARCHITECTURE_FACTOR) for board, error in shared.items()]
    return Spread(half_interval(np.array(errors)), _quantile(rest, votes, COVER), len(shared))


def _quantile(values: pd.Series, votes: pd.Series, share: float) -> float:
    return float(np.quantile(values, share, weights=votes, method="inverted_cdf"))


_load = files.until_changed(Boards.load)


def shipped() -> Boards:
    """Return the spreads and rates that ship; empty if none do."""
    return _load(PATH) if PATH.is_file() else Boards()


def widened(times: Mapping[str, float], kind: str, is_known: bool) -> dict[str, float]:
    """Return ``predicted_ms, low_ms, high_ms`` with the range that holds on boards of others."""
    low, high = shipped().widened(times["predicted_ms"], times["low_ms"], times["high_ms"], kind, is_known)
    return {**times, "low_ms": float(low), "high_ms": float(high)}
