"""Ways to decide how far to guess."""
