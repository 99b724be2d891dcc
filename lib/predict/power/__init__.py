"""Power of GPU kernels while they repeat: physical rates of utilisation, then boosted trees.

``features`` what the power of GEMMs depends on; ``model`` the model and its file; ``training`` its training and scores;
``energy`` the joules of a network's GEMMs.
"""
