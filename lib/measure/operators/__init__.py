"""Single operators: sweeps over configurations, and the operators of a network in isolation.

From the ground up: ``cold_memory``, ``visit`` (one configuration, timed for a moment), ``visitor`` (the process that does it),
``points`` (drawn once, shared by devices alike), ``raw_files``, ``aggregate`` (from visits to the table ``sweep``),
``device_sweep`` (the rounds of one device), ``sweep`` (all devices), ``shards`` (merged). ``isolated`` stands apart.
"""
