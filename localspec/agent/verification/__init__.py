"""What an agent must have done before a task may end."""
