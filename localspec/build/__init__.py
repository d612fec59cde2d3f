"""Build models: a draft for a target, or a model in fewer bits."""

from localspec.build.context import CalibrationPrompt
from localspec.build.exporting import export
from localspec.build.gain import graph_bytes, no_gain, weight_bytes
from localspec.build.heads import HeadBuild, build_head
from localspec.build.pipeline import BuildPlan, build, card

__all__ = [
    "BuildPlan",
    "CalibrationPrompt",
    "HeadBuild",
    "build",
    "build_head",
    "card",
    "export",
    "graph_bytes",
    "no_gain",
    "weight_bytes",
]
