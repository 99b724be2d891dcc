"""GPUs, beside what torch says of them: ``card`` (NVML), ``watch`` (what happened on one beside a measurement)."""
