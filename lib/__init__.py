"""Measure, explain, predict and place neural-network work on CPUs and GPUs.

The map of the library, from the ground up; each package imports only from those above it:

    ground    errors, paths, files, locks, csv_files, store,   what every room stands on
              tables, input_tables, missing, progress, execution, steps
    config    parameters of notebooks, definitions in params/  typed and checked
    work      what is run                                      workloads, datasets, models, training; data_versions;
                                                               graph/: captured operators
    measure   what it took                                     machine, load, timing, ceilings; training/, operators/, networks/
    predict   what it would take, and why                      analytic/, operators/, networks/, evaluation/; registry, advise
    schedule  where it runs                                    problem, state, policies/, simulation/, runtime/
    tensorrt  engines of edge devices                          their layers, latencies and power; optional
    finetune  training runs of image classifiers               config, data, model, checkpoints, reports; optional
    studies   what each notebook needs besides                 a folder a notebook; nothing else imports them
    dashboard projects, runs and agents                        database, REST API, pages, live updates; optional
    cli       python -m lib <verb>                             a file a room

``report`` (what every notebook stands on, the runner, the page) stands on the ground and ``config`` alone; studies and the
command line use it. Importing ``lib`` imports nothing heavy: torch, pandas and matplotlib are imported where they are used.
"""

import os

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts; CUDA's own order is by speed

__version__ = "0.5.1"
