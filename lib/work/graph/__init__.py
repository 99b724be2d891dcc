"""The operators that a network or a function runs, captured without running it.

From the ground up: ``ops`` (operators, tensors and graphs as data), ``recorder`` and ``capture``;
``counts`` (FLOPs and bytes), ``shapes``, ``recurrent`` (what cuDNN runs), ``rebuild`` (make an
operator runnable again); ``family`` with ``windowed``, ``gemm`` and ``memory_bound``, joined by
``families``; ``spaces`` (which configurations a sweep draws). A new family is a function in one of
the three and a line in ``families.families``.
"""
