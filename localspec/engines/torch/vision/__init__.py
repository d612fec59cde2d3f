"""Models with eyes: pictures become embeddings, which a decoder of our own reads among those of tokens."""
