"""Single operators: sweeps over configurations, and the operators of a network in isolation.

From the ground up: ``cold_memory``, ``visit`` (one configuration, timed for a moment), ``visitor``
(the process that does it), ``points`` (what is measured), ``export``, ``aggregate`` (from visits to
the table ``sweep``), ``device_sweep`` (rounds and raw files of one device), ``sweep`` (all devices,
shards). ``isolated`` stands apart.
"""
