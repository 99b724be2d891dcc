"""Fine-tuning of image classifiers, optional: a run has a config and a folder, and is profiled as any workload.

From the ground up: ``config``; ``metrics``, ``reports`` (log, history, TensorBoard, figures) and ``tracking`` (MLflow);
``transforms``, ``data``, ``models``, ``optimization``; ``folders`` (of runs, by name); ``train`` (a run in its folder),
``finetune`` (a run from its config), ``task`` (a run as a worker's task), ``finished`` (a run that has ended, read back and
predicted).
"""
