"""The terminal of a conversation: keys and pastes that come at any moment, the input line, the status bar."""
