"""Power of GPUs: ``energy`` predicts watts, joules and what a clock changes, ``limits`` what a power limit changes."""
