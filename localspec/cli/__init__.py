"""The command line: app, options and console, and one file a command."""
