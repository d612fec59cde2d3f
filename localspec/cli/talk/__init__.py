"""The conversation of `localspec chat` on a terminal."""
