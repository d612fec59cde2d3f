"""A model learns to guess another: texts that the other writes, the loss, and the loop."""
