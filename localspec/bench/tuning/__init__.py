"""The search behind `localspec tune`."""
