"""Real runs: a queue in a database, workers here or on a Ray cluster, and the loop's backend."""
