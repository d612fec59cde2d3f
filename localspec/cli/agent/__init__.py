"""`localspec agent`."""
