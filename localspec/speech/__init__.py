"""Speech to text: read audio, find speech in it, write it down with its times, tell the speakers apart."""
