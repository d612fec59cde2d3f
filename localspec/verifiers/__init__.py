"""Verifiers: how many guesses are accepted. A lossy one says so in its name."""
