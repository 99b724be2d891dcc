"""Schedules simulated: events, the compiled twin, metrics, traces."""
