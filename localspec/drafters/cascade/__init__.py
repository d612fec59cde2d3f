"""Guesses that a tier between draft and target checks in one pass of its own."""

from localspec.drafters.cascade.drafter import CascadeDraft

__all__ = ["CascadeDraft"]
