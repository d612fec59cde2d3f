"""The decoding of block-diffusion models: blocks of masks that become tokens."""
