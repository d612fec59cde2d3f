"""Diarization: who speaks when, by a segmentation model, speaker embeddings and clustering."""
