"""Training workloads, batch by batch.

From the ground up: ``profiled`` (a run as it is shown, or read back), ``profiler`` (rows, a batch each), ``passes`` (warm-up,
pipelined, profiled, evaluation, each within its share of the budget), ``summary`` (what the rows say, the verdict),
``profile_run`` (one run), ``matrix`` (many).
"""
