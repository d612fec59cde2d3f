"""An HTTP server with the APIs that editors and agents speak."""
