"""Power of GPUs: ``limits`` predicts the share of its power that a network draws and what a lowered limit changes.

``energy`` turns that share into joules per sample.
"""
