"""llama.cpp: a GGUF file as it is, on the devices that llama.cpp was built for."""

from localspec.engines.llamacpp.engine import LlamaCpp

__all__ = ["LlamaCpp"]
