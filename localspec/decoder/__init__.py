"""A decoder of our own in plain torch, for engines: its weights, its passes and the kernels of a card."""
