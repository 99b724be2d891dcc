"""Predictions from shapes and ceilings alone: complexity, roofline, hardware counters."""
