"""Real runs: a queue in a database, workers on this machine or a Ray cluster, and the loop's backend over both."""
