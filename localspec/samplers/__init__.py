"""Samplers of block-diffusion models: which masks of a block become tokens in which pass."""
