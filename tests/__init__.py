"""Tests, one file a module or a theme."""

from lib import paths

# Measurements and images of others that a clone does not have; what needs them skips and says so.
SHARED = paths.ROOT.parent / "shared"
XRAYS = SHARED / "data" / "medmnist" / "pneumoniamnist.npz"
