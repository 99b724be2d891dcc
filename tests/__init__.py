"""Tests, and the benchmarks of ``make bench``."""
