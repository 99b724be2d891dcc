"""Whole networks, end to end, as a program would run them: time, peak memory, the allocator."""
