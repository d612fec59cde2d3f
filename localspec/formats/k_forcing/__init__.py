"""Hints of K-Forcing: rows after a text that stand for tokens which its target has not written yet."""
