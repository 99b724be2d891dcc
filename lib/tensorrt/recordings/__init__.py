"""Recordings of engines' layers: read, made here, and turned into training data."""
