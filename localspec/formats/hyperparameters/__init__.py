"""The hyperparameters of a model: the ones that localspec computes, and the ones that it refuses."""
