"""Tokenizers and chat templates."""
