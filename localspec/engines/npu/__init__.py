"""Intel's NPU: a graph compiled for a longest prompt and answer, in a process of its own first."""

from localspec.engines.npu.engine import Npu

__all__ = ["Npu"]
