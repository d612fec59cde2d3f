"""Heads: one layer that reads a target's hidden states and drafts for it (EAGLE-3, Li et al. 2025)."""
