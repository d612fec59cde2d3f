"""Plans become models in the library: a draft for a target, or a model in fewer bits."""

from localspec.building.desk import Asked
from localspec.building.exporting import export
from localspec.building.making import Plan, build, card

__all__ = ["Asked", "Plan", "build", "card", "export"]
