"""Autoencoders of pictures: latents become pictures here, or on another machine that has the memory."""
