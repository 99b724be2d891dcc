"""What ``07_scheduler_eval`` shows."""
