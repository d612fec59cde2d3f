"""As many guesses as pay, none included, by what passes and guesses have cost and how many stood."""

from localspec.draft_length.adaptive.policy import Adaptive

__all__ = ["Adaptive"]
