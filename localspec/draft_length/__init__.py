"""Draft-length policies: how far to guess."""
