"""Commands on the models of the library."""
