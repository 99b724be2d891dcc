"""Power of GPU kernels while they repeat: physical rates of utilisation, then boosted trees.

``model`` what the power of GEMMs depends on, the model and its file; ``training`` its training and scores; ``energy`` the
joules of a network's GEMMs; ``limits`` time and energy of networks under a lowered power limit.
"""
