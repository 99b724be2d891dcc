"""GPUs, beside what torch says of them: ``card`` (NVML)."""
