"""What a draft lost with its layers is taught to it again, on texts that the target writes."""

from localspec.steps.heal.step import Heal

__all__ = ["Heal"]
