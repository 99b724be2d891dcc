"""Captured operators: capture, counts, families with their shapes and spaces, and how to make one runnable again."""
