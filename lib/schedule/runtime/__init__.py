"""Jobs carried out for real: executor, journal, tasks, workers here and on a Ray cluster."""
