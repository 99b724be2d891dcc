"""What the tests of scheduling share."""

import numpy as np

from lib.schedule.contention import Contention

WORK_CONSERVING = ("first-come", "shortest-first", "affinity")  # no device is idle while a job could run there


def contention_of(slowdown, cores=np.inf):
    """Return slowdowns (types, types) that hold for every job class."""
    return Contention(np.asarray(slowdown, float)[None, :, None, :], cores)
