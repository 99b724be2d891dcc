"""What the work took.

What a file may import, from the ground up: ``statistics`` (what samples say, the verdict), ``budget``, ``machine``, ``worker``
(one layer for processes that measure), ``archive`` (where measured tables lie), ``gpus`` (other users, clock, throttling);
``load`` (what else runs), ``timing``, ``reference_kernel`` (is the processor as fast as usual?); ``ceilings``. On them stand
``training`` (profiled runs, the matrix), ``networks`` (end to end) and ``operators`` (sweeps, which use the allocator of
``networks``); ``compare`` sets two measurements side by side, ``packing`` carries results to another machine.

How a verdict comes about: ``statistics.spread_verdict`` of the spread and ``crowd_verdict`` of the neighbours, joined by
``statistics.worst``; a profiled run has more to say (``training.summary.judge``), and so has a sweep
(``operators.aggregate.summarise``).
"""
