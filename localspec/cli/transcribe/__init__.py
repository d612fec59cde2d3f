"""`localspec transcribe`: speech to text, file by file."""
