"""Whole networks on GPUs: a sum over operators whose efficiencies are learned from whole networks."""
