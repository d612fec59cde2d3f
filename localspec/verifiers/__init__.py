"""Ways to decide how many guesses stand; lossy ones say so in their name."""
