"""The tools of an agent: built-in ones, functions of the user, and MCP servers."""
