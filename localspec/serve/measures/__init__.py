"""The numbers of a server: counts for Prometheus, and a line for each request."""
