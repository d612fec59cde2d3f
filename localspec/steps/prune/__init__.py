"""Layers that a draft can do without are taken out of its graph."""

from localspec.steps.prune.step import Prune

__all__ = ["Prune"]
