"""Networks end to end, as a program would run them: time, peak memory, first-touch page faults.

From the ground up: ``allocator``, ``program`` (runs one network), ``visits_file``, ``end_to_end`` (some
cases in a process), ``campaign`` (many cases, in rounds, resumable; what ``python -m lib measure networks`` runs).
"""
