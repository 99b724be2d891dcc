"""Power of GPUs: ``energy`` predicts watts, joules per sample and what a clock changes, ``limits`` what a power limit changes."""
