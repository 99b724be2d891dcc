"""A part of a cost model: the regressor of one group of families and one pass, where it holds, and how wrong it was."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from lib.predict.analytic.scaling import Scaling
from lib.predict.model_file import Count, Limits, NotNegative, Unsaved, require
from lib.predict.operators import inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.features import TEXTS, code
from lib.predict.operators.regressors import Boosted, Rates

FAMILY = "op"  # the feature that tells families apart


@dataclass(kw_only=True)
class Interval:
    """Half intervals in log time by bin of the predicted time: ``halves`` are one more than the bins' edges."""

    edges_ms: list[float] = field(default_factory=list)
    halves: list[NotNegative]

    def __post_init__(self):
        """Refuse bins that do not grow, or intervals of other bins."""
        require(len(self.halves) == len(self.edges_ms) + 1 and list(self.edges_ms) == sorted(self.edges_ms),
                f"{len(self.halves)} intervals do not fit edges {self.edges_ms}, which have to grow")

    def half(self, predicted_ms: np.ndarray, families: Mapping[Any, "Interval"] | None = None,
             ops: np.ndarray | None = None) -> np.ndarray:
        """Return half of the nominal 90 % interval of each prediction; of ``ops`` in ``families``, by the family's own."""
        half = np.array(self.halves)[np.searchsorted(self.edges_ms, predicted_ms)]
        for op, interval in (families or {}).items():
            half = np.where(ops == op, interval.half(predicted_ms), half)
        return half


@dataclass
class Part(Interval):
    """The regressor of one group of families and one pass, its training ranges, intervals and scores on held-out shapes.

    ``features`` are all that an operator has; the regressor uses those that varied in training. The bins of the interval are
    of the time that the regressor alone predicts, ``families`` are intervals of families that have some of their own, by the
    feature FAMILY. ``origin`` names the device whose kernels it was trained on where that is another one: then every answer is
    out of range; ``scaling`` leads from a CPU to the one that is predicted (None: the same). ``held_out`` are the predictions
    of training rows by the fold that left them out, with their intervals; they are not saved.
    """

    regressor: Annotated[Rates | Boosted, Field(discriminator="form")]
    features: list[str]
    ranges: dict[str, Limits]
    kinds: list[tuple[str, str, str]]
    rows: Count
    scores: dict[str, float] = field(default_factory=dict)
    correction: Correction | None = None
    origin: str = ""
    families: dict[str, Interval] = field(default_factory=dict)
    scaling: Scaling | None = None
    held_out: Unsaved = None

    def __post_init__(self):
        """Refuse ranges, regressors and corrections of features that there are none of."""
        super().__post_init__()
        used = {*self.regressor.names, *self.ranges, *(self.correction.names if self.correction else ()),
                *([FAMILY] if self.families else [])}
        require(used <= set(self.features), f"{sorted(used - set(self.features))[:3]} are none of its features")

    @classmethod
    def trained(cls, regressor: Rates | Boosted, rows: pd.DataFrame, x: pd.DataFrame) -> "Part":
        """Return the part of a regressor that was trained on rows with features ``x``, without an interval yet."""
        ranges = {name: (float(x[name].min()), float(x[name].max())) for name in x if name not in TEXTS}
        return cls(regressor, list(x), ranges, inputs.kinds(rows), len(rows), halves=[np.nan])

    @cached_property
    def codes(self) -> np.ndarray:
        """Give the codes of family, kind and layout of the training rows."""
        return inputs.codes(pd.DataFrame(self.kinds, columns=inputs.KIND))

    @cached_property
    def _limits(self) -> np.ndarray:
        """Give the lower and upper limits of each feature; a text has none."""
        return np.array([self.ranges.get(name, (-np.inf, np.inf)) for name in self.features]).reshape(-1, 2).T

    @cached_property
    def _of_families(self) -> dict[float, Interval]:
        return {code(FAMILY, [op])[0]: interval for op, interval in self.families.items()}

    def _named(self, x: np.ndarray, names: Sequence[str]) -> np.ndarray:
        return x[:, [self.features.index(name) for name in names]]

    def predict(self, terms: np.ndarray | pd.DataFrame, x: np.ndarray | pd.DataFrame,
                work: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return predicted ms, half of their nominal 90 % intervals in log time, and whether the features are out of range.

        For terms (n, terms) and features (n, features); a scaled part needs their FLOPs and bytes, too (``work``, n each).
        """
        terms, x = np.asarray(terms), np.asarray(x)[:, :len(self.features)]  # a part of rates alone has none
        low, high = self._limits
        outside = ((x < low) | (x > high)).any(axis=1)
        predicted = self.regressor.predict(terms, self._named(x, self.regressor.names), outside)
        ops = x[:, self.features.index(FAMILY)] if self.families else None
        halves = self.half(predicted, self._of_families, ops)
        if self.scaling:
            predicted = self.scaling.scaled_ms(predicted, *work)
        if self.correction:
            predicted = predicted * np.exp(self.correction(self._named(x, self.correction.names)))
        return predicted, halves, outside
