"""Turning downloaded or local files into models of the library."""
