"""Anthropic's API: messages, and the number of their tokens."""
