"""Tests, one file a module or a theme."""

from lib import paths

# Real images that a clone does not have; what needs them skips and says so.
XRAYS = paths.ROOT.parent / "shared" / "data" / "medmnist" / "pneumoniamnist.npz"
