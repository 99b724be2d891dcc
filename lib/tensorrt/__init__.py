"""Layers of TensorRT engines: read, given their power, modelled and predicted. Needs no TensorRT.

From the ground up: ``engine`` (layers of an engine file), ``power_mapping`` (latencies and a power
log per layer), ``recordings`` (folders of both), ``layers`` (training tables), ``lasso`` and
``physics`` (the two learners), ``layer_model``, ``training``, ``tune`` (Optuna), ``predictions``,
``registry`` (MLflow). ``python -m lib layer-power`` runs them.
"""
