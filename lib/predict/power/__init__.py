"""Power of GPU kernels while they repeat: physical rates of utilisation first, trees after, as operator times are predicted.

``features`` what the power of GEMMs depends on, ``attention`` that of attention, ``kinds`` what sets the two apart; ``model``
the model and its file, ``training`` how those that ship are trained and scored, ``energy`` what a network's GEMMs take.
"""
