"""localspec: the same answers of a local language model, sooner."""
