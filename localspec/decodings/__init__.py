"""Ways of writing another text than the model's own, by name: one file each."""
