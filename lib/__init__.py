"""Measure, explain, predict and place neural-network work on CPUs and GPUs.

The map of the house; arrows point one way, from the ground up:

    ground floor  errors, paths, params, store    what every room stands on
    work          what is run                     workloads, models, training; capture, operators, counts, spaces
    measure       what it took                    machine, load, timing, ceilings, profiler, sweep, whole networks; published
    predict       what it would take, and why     complexity, roofline, Nsight Compute; cost model, estimate, advise, calibrate
    schedule      where it runs                   problem, state, policies, hybrid, simulate, bounds; worker, execute, cluster
    book          how it is shown                 notebook, figures, run, report

``book`` stands on the ground alone and serves the notebooks and the command line (``python -m lib``).
Importing ``lib`` imports nothing heavy: torch, pandas and matplotlib are imported where they are used.
"""

__version__ = "0.1.0"
