"""Vocabularies of GGUF files."""
