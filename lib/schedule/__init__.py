"""Where work runs: policies, simulated and real."""
