"""Hugging Face folders: safetensors, and transformers models."""
