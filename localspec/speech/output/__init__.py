"""Transcripts as text, subtitles, a table or JSON, segment by segment as they come."""
