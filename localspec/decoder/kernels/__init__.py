"""Kernels of a card, by Triton, which comes with torch for CUDA."""
