"""Models with eyes: what their folders say of pictures, and the part of them that is a language model."""
