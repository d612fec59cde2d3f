"""Downloading models from hubs and package indexes."""
