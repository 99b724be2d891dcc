"""What ``06_cost_model`` shows."""
