"""Ollama's API: chat, generate, and what is there."""
