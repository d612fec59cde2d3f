"""Prompts x settings -> records: plain decoding against drafts and other programs. Prints nothing."""
