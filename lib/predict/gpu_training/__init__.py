"""What the model of GPUs learns from: published times as cases, its training and scores, and a user's calibration."""
