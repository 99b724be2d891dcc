"""What ``04_complexity`` shows."""
