"""A model with its draft: what is loaded and why (resolution), and how it answers (generation)."""
