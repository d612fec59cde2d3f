"""A model's output: grammars that constrain it, and parsers of its reasoning and tool calls."""
