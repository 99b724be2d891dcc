"""What is run: workloads, datasets, models and the training loop."""
