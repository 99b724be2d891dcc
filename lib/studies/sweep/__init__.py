"""What ``03_sweep`` shows."""
