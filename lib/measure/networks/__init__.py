"""Networks end to end, as a program would run them: time, peak memory, first-touch page faults.

From the ground up: ``allocator``, ``runtimes``, ``case`` (one network to run), ``end_to_end`` (some cases in a process),
``visits_file``, ``campaign`` (many cases, in rounds, resumable; what ``python -m lib measure networks`` runs).
"""
