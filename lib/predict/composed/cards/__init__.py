"""Cards that few or no networks were measured on: what measured cards share, and what a few networks of a card correct."""
