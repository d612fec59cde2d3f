"""`localspec chat`."""
