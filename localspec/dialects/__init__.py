"""How families of models write a tool call; a file is a dialect."""
