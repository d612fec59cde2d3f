"""An agent: a model that calls tools until it has an answer."""

from localspec.agent.smolagents import smolagents_model

__all__ = ["smolagents_model"]
