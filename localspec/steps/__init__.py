"""Steps of a build: each makes a folder of model files out of another."""
