"""Whisper: its tokens and rules, the decoding of a window, segments, word times, and drafts."""
