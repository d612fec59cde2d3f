"""Tool-call formats of model families, one file for each."""
