"""Predict: what work would take, and why."""
