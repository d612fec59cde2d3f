"""Imports of GGUF files and Hugging Face folders."""
