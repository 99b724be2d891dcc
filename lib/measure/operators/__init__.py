"""Single operators: sweeps over their configurations, their aggregation, cold memory, operators in isolation."""
