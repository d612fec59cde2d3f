"""Remove the layers that a draft can do without."""

from localspec.steps.prune.step import Prune

__all__ = ["Prune"]
