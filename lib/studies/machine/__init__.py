"""What ``01_machine`` shows."""
