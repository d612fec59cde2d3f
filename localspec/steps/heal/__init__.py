"""Train a pruned draft on texts that the target writes."""

from localspec.steps.heal.step import Heal

__all__ = ["Heal"]
