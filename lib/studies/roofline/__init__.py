"""What ``05_roofline`` shows."""
