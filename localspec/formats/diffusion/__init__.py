"""Block-diffusion language models: which folders hold one, its shape, its weights and its arithmetic."""
