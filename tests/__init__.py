"""Tests, and the benchmarks of ``make bench``."""

from lib import paths

# Real images that a clone does not have; what needs them skips and says so.
XRAYS = paths.ROOT.parent / "shared" / "data" / "medmnist" / "pneumoniamnist.npz"
