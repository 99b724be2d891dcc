"""Timings that are no pass or fail, each a module with a ``main``: ``make bench``, or ``python -m benchmarks [name ...]``."""
