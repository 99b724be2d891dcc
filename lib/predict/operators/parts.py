"""A part of a cost model: the regressor of one group of families and one pass, where it holds, and how wrong it was."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from lib.predict.analytic.scaling import Scaling
from lib.predict.model_file import Count, Limits, NotNegative, Unsaved, require
from lib.predict.operators import inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.features import TEXTS, code
from lib.predict.operators.regressors import Boosted, Rates, Student

FAMILY = "op"  # the feature that tells families apart


@dataclass(frozen=True)
class Interval:
    """Half intervals in log time by bin of the predicted time: ``halves`` are one more than the bins' edges."""

    edges_ms: list[float]
    halves: list[NotNegative]

    def __post_init__(self):
        """Refuse bins that do not grow, or intervals of other bins."""
        require(len(self.halves) == len(self.edges_ms) + 1 and list(self.edges_ms) == sorted(self.edges_ms),
                f"{len(self.halves)} intervals do not fit edges {self.edges_ms}, which have to grow")

    def half(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Return half of the nominal 90 % interval of each prediction."""
        return np.array(self.halves)[np.searchsorted(self.edges_ms, predicted_ms)]


@dataclass
class Part:
    """The regressor of one group of families and one pass, its training ranges, intervals and scores on held-out shapes.

    ``features`` are all that an operator has; the regressor uses those that varied in training. ``halves`` are half intervals
    in log time by bin of the time that the regressor alone predicts (``edges_ms``), ``families`` those of families that have
    some of their own, by the feature FAMILY. ``origin`` names the device whose kernels it was trained on where that is another
    one: then every answer is out of range; ``scaling`` leads from a CPU to the one that is predicted (None: the same).
    ``held_out`` are the predictions of training rows by the fold that left them out, with their intervals; they are not saved.
    """

    regressor: Annotated[Rates | Boosted | Student, Field(discriminator="form")]
    features: list[str]
    ranges: dict[str, Limits]
    kinds: list[tuple[str, str, str]]
    edges_ms: list[float]
    halves: list[NotNegative]
    rows: Count
    scores: dict[str, float] = field(default_factory=dict)
    correction: Correction | None = None
    origin: str = ""
    families: dict[str, Interval] = field(default_factory=dict)
    scaling: Scaling | None = None
    held_out: Unsaved = None

    def __post_init__(self):
        """Refuse ranges, regressors and corrections of features that there are none of."""
        Interval(self.edges_ms, self.halves)
        used = {*self.regressor.names, *self.ranges, *(self.correction.names if self.correction else ()),
                *([FAMILY] if self.families else [])}
        require(used <= set(self.features), f"{sorted(used - set(self.features))[:3]} are none of its features")

    @cached_property
    def codes(self) -> np.ndarray:
        """Give the codes of family, kind and layout of the training rows."""
        return inputs.codes_of(self.kinds)

    @cached_property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return limits(self.ranges, self.features)

    def _columns(self, names: list[str]) -> list[int]:
        return [self.features.index(name) for name in names]

    def _halves(self, predicted: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return half intervals in log time, of a family's own where it has one."""
        widths = Interval(self.edges_ms, self.halves).half(predicted)
        for op, interval in self.families.items():
            members = x[:, self.features.index(FAMILY)] == code(FAMILY, [op])
            widths[members] = interval.half(predicted[members])
        return widths

    def predict(self, terms: np.ndarray, x: np.ndarray,
                work: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return predicted ms, half of their nominal 90 % intervals in log time, and whether the features are out of range.

        For terms (n, terms) and features (n, features); a scaled part needs their FLOPs and bytes, too (``work``, n each).
        """
        x = x[:, :len(self.features)]  # a part of rates alone has none
        outside = beyond(self._limits, x)
        predicted = self.regressor.predict(terms, x[:, self._columns(self.regressor.names)], outside)
        widths = self._halves(predicted, x)
        if self.scaling:
            predicted = self.scaling.scaled_ms(predicted, *work)
        if self.correction:
            predicted = predicted * np.exp(self.correction(x[:, self._columns(self.correction.names)]))
        return predicted, widths, outside

    def check_names(self, terms: list[str], features: list[str]) -> None:
        """Raise ValueError where a part of a file has other terms or features than these; one of rates has no features."""
        require(self.regressor.terms == terms and self.features in (features, []),
                "it has other terms or features than this program makes of operators")


def ranges(x: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of each feature that is a number."""
    return {column: (float(x[column].min()), float(x[column].max())) for column in x if column not in TEXTS}


def limits(trained: Mapping[str, tuple[float, float]], names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper limits of the features ``names``; a text has none."""
    low, high = np.array([trained.get(name, (-np.inf, np.inf)) for name in names]).reshape(-1, 2).T
    return low, high


def beyond(bounds: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return whether each row of features (n, features) lies outside of the limits."""
    return ((x < bounds[0]) | (x > bounds[1])).any(axis=-1)
