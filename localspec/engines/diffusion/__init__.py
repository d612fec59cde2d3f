"""Block-diffusion language models (SDAR, LLaDA, Dream) with PyTorch, on a CPU or a CUDA GPU."""

from localspec.engines.diffusion.engine import Diffusion

__all__ = ["Diffusion"]
