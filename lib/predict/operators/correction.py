"""The correction of a CPU's model by a few measured points: by what factor it errs, smoothly over the features.

A Gaussian process (scikit-learn's, Matérn 3/2, with noise) on the log ratio of measured and predicted time; saved as its
points and weights, so that loading one runs no code. All standardised features share one length.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.predict.model_file import NotNegative, Positive, require, vector

_NOISE, _SIGNAL = 0.05, 0.3


@dataclass
class Correction:
    """The log factor as a smooth function of named features."""

    names: list[str]
    centre: vector()
    scale: vector(Positive)
    points: Annotated[list[list[float]], Field(min_length=1)]
    weights: vector()
    mean: float
    signal: NotNegative  # variance
    length: Positive

    def __post_init__(self):
        """Refuse points, weights and scales of different sizes."""
        require({len(self.centre), len(self.scale), *map(len, self.points)} == {len(self.names)}
                and len(self.points) == len(self.weights), "centre, scale, points and weights are not of the same features")

    @classmethod
    def fit(cls, names: Sequence[str], x: np.ndarray, log_ratio: np.ndarray) -> "Correction":
        """Fit features (n, len(names)) and the log of measured over predicted; without features one factor fits all."""
        mean = float(np.median(log_ratio))
        if not len(names):
            return cls.constant(mean)
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
        kernel = ConstantKernel(_SIGNAL ** 2, (1e-4, 10)) * Matern(len(names) ** 0.5, (0.3, 100), nu=1.5) + \
            WhiteKernel(_NOISE ** 2, (1e-4, 0.3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound of the kernel is a good answer, too
            fitted = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0).fit(
                (x - centre) / scale, log_ratio - mean)
        product = fitted.kernel_.k1
        return cls(list(names), centre, scale, ((x - centre) / scale).round(6).tolist(), fitted.alpha_, mean,
                   float(product.k1.constant_value), float(product.k2.length_scale))

    @classmethod
    def constant(cls, log_factor: float) -> "Correction":
        """Return a correction by the same factor everywhere, of which the logarithm is given."""
        return cls([], np.zeros(0), np.ones(0), [[]], np.zeros(1), log_factor, 0.0, 1.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the log factor for features (n, len(names))."""
        from scipy.spatial.distance import cdist

        near = 3 ** 0.5 / self.length * cdist((x - self.centre) / self.scale, self.points)
        return self.mean + self.signal * ((1 + near) * np.exp(-near)) @ self.weights
