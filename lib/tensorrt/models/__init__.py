"""Models of layers: fitted, compared, tuned, kept, and asked about an engine."""
