"""Whisper models: their weights in either format, their settings, and their tokenizer."""
