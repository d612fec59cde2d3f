"""A toy model without weights: a fake for tests, an example for readers."""

from localspec.engines.toy.engine import LAYERS, Toy, ToyHeadSession, ToyTappedSession

__all__ = ["LAYERS", "Toy", "ToyHeadSession", "ToyTappedSession"]
