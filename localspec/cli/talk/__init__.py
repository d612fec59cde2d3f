"""The conversation of `localspec chat`, as people type it."""
