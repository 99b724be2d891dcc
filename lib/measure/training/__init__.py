"""Training workloads, batch by batch.

From the ground up: ``profiled`` (a run as it is shown, or read back), ``limits`` (what keeps it in its budget), ``profiler``
(rows, a batch each), ``passes`` (warm-up, pipelined, profiled, evaluation), ``summary`` (what the rows say, the verdict),
``profile_run`` (one run), ``matrix`` (many).
"""
