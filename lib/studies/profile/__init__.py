"""What ``02_profile`` shows."""
