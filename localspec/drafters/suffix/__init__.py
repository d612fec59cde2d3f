"""Guesses copied from all texts so far: what followed the longest match of the text's end."""

from localspec.drafters.suffix.drafter import SuffixDraft

__all__ = ["SuffixDraft"]
