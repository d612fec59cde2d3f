"""Checks that an agent's task must pass before it may end."""
