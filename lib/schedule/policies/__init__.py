"""Scheduling policies: baselines, their queues, and ``hybrid``."""
