"""Whole networks from their operators: composition of times, peak memory."""
