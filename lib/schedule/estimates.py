"""Estimated times of jobs: predictions, corrected by the jobs that finished.

In log time a prediction is the size of its job, the preference of the job's class for a device
type, and a rest, which is believed the less, the larger errors are (James and Stein, 1961).
"""

from typing import NamedTuple

import numpy as np

from lib.schedule.state import Predict, State

EXACT = 0.02  # spread of the predictions in log time up to which they count as exact
USUAL_REST = 0.3  # spread of the rest, in log time, of correct predictions
PRIOR_ERRORS = 2.0  # errors of 0 with which the correction of a class on a type begins
PRIOR_JOBS = 20.0  # finished jobs that the first belief in the rest counts for
ENOUGH = 12  # finished jobs from which the belief and the spread are learned


class Split(NamedTuple):
    """The rest of the predictions of a table, in log time, and the errors that it implies."""

    table: np.ndarray  # seconds (jobs, types)
    group: np.ndarray  # (jobs) number of the class; jobs without a class are one more class
    rest: np.ndarray  # (jobs, types), NaN where a job cannot run
    sigma: float


class Estimate(NamedTuple):
    """Estimated seconds (jobs, types) with set-up, their spread in log time, whether all is exact."""

    seconds: np.ndarray
    sigma: float
    exact: bool


def split(table: np.ndarray, job_class: np.ndarray) -> Split:
    """Return the rest of predictions, after sizes and preferences by alternating means."""
    group = np.where(job_class < 0, job_class.max() + 1, job_class)
    finite = np.isfinite(table)
    logs = np.where(finite, np.log(np.where(finite, table, 1.0) / table[finite].max()), np.nan)
    counts = np.maximum(by_class(finite, group), 1)  # (classes, types)
    size = np.nanmean(logs, axis=1, keepdims=True)
    for _ in range(3):  # by turns, since some times are missing
        preference = by_class(np.nan_to_num(logs - size), group) / counts
        size = np.nanmean(logs - preference[group], axis=1, keepdims=True)
    rest, types, sigma = logs - size - preference[group], table.shape[1], 0.0
    if types > 1 and (job_class >= 0).any():
        excess = float(np.nanmean(rest[job_class >= 0] ** 2)) - USUAL_REST**2
        sigma = (max(0.0, excess) / (1 - 1 / types)) ** 0.5
    return Split(table, group, rest, sigma)


def by_class(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the sums (classes, types) of values (jobs, types) over the jobs of each class."""
    return np.column_stack([np.bincount(group, column) for column in values.T])


def estimate(state: State, predict: Predict) -> Estimate:
    """Return the estimates that follow from the predictions and from the jobs that finished."""
    parts = state.memory.get("split")
    if parts is None or parts.table is not predict.table:
        parts = state.memory["split"] = split(predict.table, state.jobs.job_class)
    jobs, types, seconds = state.finished
    known = np.isfinite(predict.table[jobs, types])  # predictions may have changed
    jobs, types, seconds = jobs[known], types[known], seconds[known]
    predicted_s = predict.table[jobs, types]
    worked_s = np.maximum(seconds - state.setup_s[types], 1e-9 * predicted_s)
    errors, sigma = np.log(worked_s / predicted_s), max(predict.sigma, parts.sigma)
    correction, left = learned(parts, sigma, jobs, types, errors)
    if len(jobs) >= ENOUGH:
        sigma = 1.4826 * float(np.median(np.abs(left)))  # standard deviation of normal errors
    exact = sigma <= EXACT and not (len(jobs) and np.median(np.abs(errors)) > EXACT / 2)
    return Estimate(predict.table * np.exp(correction) + state.setup_s, sigma, exact)


def learned(parts: Split, sigma: float, jobs: np.ndarray, types: np.ndarray,
            errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the correction of log times (jobs, types) by errors of finished jobs, and errors left.

    The rest is believed as far as its variance exceeds that of errors of ``sigma``, later as far as
    it came true within the jobs of a class and type (ridge regression). Then each class and type is
    shifted by its mean error.
    """
    rest, width = np.nan_to_num(parts.rest), parts.rest.shape[1]
    cell, cells = parts.group[jobs] * width + types, (parts.group.max() + 1) * width
    count = np.bincount(cell, minlength=cells)
    variance = max(float(np.nanmean(parts.rest ** 2)), 1e-12)
    belief = 1.0
    if sigma > EXACT:
        belief = max(0.0, 1.0 - sigma**2 * (1 - 1 / width) / variance)
    if len(jobs) >= ENOUGH:
        said = rest[jobs, types]
        true = said + errors
        said = said - (np.bincount(cell, said, cells) / np.maximum(count, 1))[cell]
        true = true - (np.bincount(cell, true, cells) / np.maximum(count, 1))[cell]
        prior = PRIOR_JOBS * variance
        belief = float(np.clip((belief * prior + said @ true) / (prior + said @ said), 0.0, 1.0))
    correction = (belief - 1.0) * rest
    errors = errors - correction[jobs, types]
    shift = np.bincount(cell, errors, cells) / (count + PRIOR_ERRORS)
    return correction + shift.reshape(-1, width)[parts.group], errors - shift[cell]
