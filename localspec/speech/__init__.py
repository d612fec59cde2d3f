"""Speech to text: read audio, find the speech in it, write it down with its times, tell the speakers apart."""
