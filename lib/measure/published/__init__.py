"""Published measurements beyond ``importers``: ``aiconfigurator`` (kernels and their power), ``whole_networks`` (timm)."""
