"""Steps of a build: each writes a changed copy of a model folder."""
