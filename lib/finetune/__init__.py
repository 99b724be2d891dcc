"""Fine-tuning of image classifiers: a run is a config, a folder, and one more profiled workload; optional.

From the ground up: ``config`` (what a run is), ``metrics``, ``figures``, ``tensorboard`` (what it reports); ``transforms``,
``networks``, ``data`` (what learns from what), ``optimization``, ``devices`` (several processes, copies to a GPU),
``checkpoints``; ``run`` (one run in its folder), ``finetune`` (runs by name), ``task`` (a run as a worker's task).
"""
