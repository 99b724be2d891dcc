"""Engines of NVIDIA TensorRT: their layers, how long each took and at what power, and models of both for layers never run.

``engine`` reads what an engine says of its layers; ``recordings`` are their latencies and power, read or made here, and the
training data made of them; ``models`` are fitted on that, kept, and asked about an engine. Nothing of TensorRT is needed.
"""
