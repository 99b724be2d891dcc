"""Tests, one file per module or theme."""

import os

import pytest
from hypothesis import HealthCheck, settings

from lib import paths
from lib.errors import InputError

# Measurements and images of others that a clone does not have; what needs them skips and says so.
SHARED = paths.ROOT.parent / "shared"
XRAYS = SHARED / "data" / "medmnist" / "pneumoniamnist.npz"

# Laws: 25 fixed examples on every change, 200 random ones every night. A law whose examples take long asks for FEW.
settings.register_profile("suite", max_examples=25, derandomize=True, deadline=None, database=None,
                          suppress_health_check=list(HealthCheck))
settings.register_profile("nightly", settings.get_profile("suite"), max_examples=200, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
FEW = settings(max_examples=settings().max_examples // 5)


def refused(words):
    """Expect an InputError with these words (a regular expression)."""
    return pytest.raises(InputError, match=words)
