"""What a server has done: counts for Prometheus, and a line for each request."""
