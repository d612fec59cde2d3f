"""Write a model as files for other engines and programs."""

from localspec.steps.export.step import Export

__all__ = ["Export"]
