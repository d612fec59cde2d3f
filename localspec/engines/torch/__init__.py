"""PyTorch: any transformers causal model on a CPU, a CUDA or Apple GPU, or Intel Gaudi."""

from localspec.engines.torch.engine import Torch

__all__ = ["Torch"]
