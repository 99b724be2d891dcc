"""Engines of NVIDIA TensorRT: their layers, how long each took and at what power, and models of both for layers never run.

``engine`` reads what an engine says of its layers, ``latencies`` how long each took, ``mapping`` brings a power log to them by
time, ``dataset`` keeps the folders ``raw_data``, ``preprocessed_data`` and ``training_data``. Nothing of TensorRT is needed.
"""
