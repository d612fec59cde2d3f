"""Commands that build drafts and quantized models."""
