"""Predictions from shapes and ceilings alone: complexity, cross-checks, roofline, hardware counters."""
