"""What another layout or element type gains on a CPU, learned from networks that were measured each way."""
