"""Hugging Face folders, and transformers models."""
