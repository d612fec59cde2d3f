"""Drafters: sources of guesses."""
