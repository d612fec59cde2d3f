"""Sources of guesses."""
