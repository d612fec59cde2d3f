"""Speech to text: read audio, find the speech in it, write it down with its times, and tell the speakers apart."""
