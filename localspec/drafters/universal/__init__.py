"""Guesses of a smaller model that has another vocabulary."""

from localspec.drafters.universal.drafter import UniversalDraft

__all__ = ["UniversalDraft"]
