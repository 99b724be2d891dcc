"""What ``09_finetune`` shows."""
