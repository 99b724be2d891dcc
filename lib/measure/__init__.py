"""What the work took: machine, load, timing, ceilings, profiler."""
