"""Commands for the models of the library."""
