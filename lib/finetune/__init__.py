"""Fine-tuning of image classifiers, optional: a run has a config and a folder, and is profiled as any workload.

From the ground up: ``config``; ``metrics``, ``figures``, ``tensorboard`` (reports of a run); ``transforms``, ``networks``,
``data`` (copied to a GPU ahead of time), ``optimization``, ``checkpoints``; ``folders`` (of runs, by name);
``run`` (a run in its folder), ``finetune`` (a run from its config), ``finished`` (a run that has ended, read back and
predicted), ``task`` (a run as a worker's task).
"""
