"""A model in the files that another engine or program reads."""

from localspec.steps.export.step import Export

__all__ = ["Export"]
