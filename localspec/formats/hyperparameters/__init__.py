"""What a model's hyperparameters stand for: the ones that are computed, and the ones that are refused."""
