"""Plans become models in the library: a draft for a target, or a model in fewer bits."""

from localspec.build.context import CalibrationPrompt
from localspec.build.exporting import export
from localspec.build.pipeline import Plan, build, card

__all__ = ["CalibrationPrompt", "Plan", "build", "card", "export"]
