"""Fine-tuning of image classifiers: a run is a config, a folder, and one more profiled workload; optional.

From the ground up: ``config`` (what a run is), ``losses``, ``metrics``, ``tensorboard``; ``transforms``, ``networks``, ``data``,
``prefetch`` (what it learns from), ``optimization``, ``checkpoints``, ``processes`` (several of one run); ``run`` (one run in its
folder), ``finetune`` (runs by name), ``task`` (a run as a worker's task).
"""
