"""The decoding loop and its laws: token ids and numpy only."""
