"""The training of hints (K-Forcing), which tell several tokens in one pass of their target."""
