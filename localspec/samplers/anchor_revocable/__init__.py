"""Revocable tokens that anchors guide and perturbed embeddings test, a reconstruction."""

from localspec.samplers.anchor_revocable.sampler import AnchorRevocable

__all__ = ["AnchorRevocable"]
