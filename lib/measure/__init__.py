"""What the work took.

What a file may import, from the ground up: ``statistics`` (what samples say, the verdict), ``budget``, ``machine``, ``worker``
(one layer for processes that measure), ``archive`` (where measured tables lie), ``gpus`` (NVML); ``disturbance`` (what makes
a row noisy: other processes, the host, throttling), ``timing``, ``reference_kernel`` (is the processor as fast as usual?);
``ceilings`` (timed by ``probes``). On them stand ``training`` (profiled runs, the matrix), ``networks`` (end to end) and
``operators`` (sweeps, which use the allocator of ``networks``); ``compare`` sets two measurements side by side, ``packing``
carries results to another machine.

The verdict on a row is the worst of its spread (``statistics.spread_verdict``) and of its disturbance; a profiled run looks at
more (``training.summary.judge``), and so does a sweep (``operators.aggregate.summarise``).
"""
