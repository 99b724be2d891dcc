"""Training workloads, batch by batch: one profiled run, the run matrix, what their rows say."""
