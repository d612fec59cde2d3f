"""As many guesses as pay, none included, by what passes and guesses cost and how many were accepted."""

from localspec.draft_length.adaptive.policy import Adaptive

__all__ = ["Adaptive"]
