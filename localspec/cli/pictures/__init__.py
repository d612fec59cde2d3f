"""Commands about pictures."""
