"""Downloads from hubs and package indexes."""
