"""Training of drafts: texts that a model writes, losses, and the loop with checkpoints."""
