"""An agent: ask, call tools, feed back, until an answer or a limit."""

from localspec.agent.smolagents import smolagents_model

__all__ = ["smolagents_model"]
