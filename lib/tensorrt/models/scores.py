"""How well predictions fit what was measured: the scores of the original study, and the median besides."""

import numpy as np
from numpy.typing import ArrayLike


def score(measured: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return ``mape``, ``median`` and ``rmspe`` (absolute relative errors, 0.1 is 10 %), ``r2`` and ``n``."""
    value, guess = np.asarray(measured, float), np.asarray(predicted, float)
    relative = np.abs(guess / value - 1)
    spread = float(((value - value.mean()) ** 2).sum())
    return {"mape": float(relative.mean()), "median": float(np.median(relative)), "rmspe": float(np.sqrt((relative**2).mean())),
            "r2": 1 - float(((guess - value) ** 2).sum()) / spread if spread else 0.0, "n": float(len(value))}
