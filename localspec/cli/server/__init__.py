"""Commands about the server of models."""
