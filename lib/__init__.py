"""Measure, explain, predict and place neural-network work on CPUs and GPUs.

The map of the library, the lowest room first. A room imports only from rooms before it; the order within a room stands in its
``__init__``. The ground: the files of lib/.

    ground     names, errors, paths, files, locks, csv_files, tables, input_tables, store, progress,
               executed_notebooks, mlflow_store
    config     typed parameters of the notebooks, definitions in params/*.yaml
    work       what is run: workloads, datasets, models, training; copies of data
                 building/ networks by name            graph/ operators of a network, counted
                 runtimes/ what runs networks, a file each; run_config: how one runs
    measure    what it took: machine, disturbance, timing, ceilings, packing
                 training/ profiled runs, run matrix   operators/ sweeps         networks/ whole networks
                 energy/ power meters                  gpus/ NVML
    predict    what it would take, and why: model_file, scores, held_out, boards, transfer, transfer_cpu, registry, steps,
                 parallel, training, network_training, gain_training, runtime_training,
                 calibrate_networks, calibrate
                 analytic/ FLOPs, roofline, counters   operators/ cost model     networks/ sums of operators, gains, memory
                 gpu/ the model of networks on GPUs    gpu_training/ its training, calibration
                 power/ watts, joules, power limits    evaluation/ baselines, outsiders
                 trust/ held-out errors, scoreboard    advice/ answers to one question or many
                 published/ readers of others' tables and labels
    schedule   where it runs: problem, state, policies, loop, simulation, risk
                 run/ real runs: queue, workers on this machine or a Ray cluster
    tensorrt   layers of TensorRT engines (optional): recordings, runtime and power of a layer
    finetune   training runs of image classifiers (optional): config, data, model, checkpoints, reports
    dashboard  projects, configs and runs (optional): tables, REST API, pages, the queue's runner
    cli        python -m lib <verb>: one file per group of verbs

    notebook   what a notebook stands on: checked parameters, style, saved figures, key numbers; nothing in lib uses it
    report     runs the notebooks and joins them to one page; used by cli alone

Importing ``lib`` imports nothing heavy: torch, pandas and matplotlib are imported where they are used.
"""

import os

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts; CUDA's own order is by speed

__version__ = "0.5.1"
