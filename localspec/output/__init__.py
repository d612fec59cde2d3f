"""What an answer may be, and how it is read: grammars, tool calls, reasoning."""
