"""The page at `/`: a chat in the browser. Its files need no key; what they ask of the APIs does."""
