"""PIPO (2605.27255): a model that reads its text in pairs of tokens, and writes up to two a pass."""
