"""A model with its draft: resolution decides which parts to load, generation answers with them."""
