"""Training workloads, batch by batch.

``profile_run`` carries out one run: its passes (``passes``), rows of each batch (``profiler``)
and verdict (``summary``). ``profiled`` reads a run of the reference. ``matrix`` repeats runs over
models, batch sizes and precisions; ``throughput`` summarises the repeats.
"""
