"""Data of any kind, run through a model, to the moments of every attention layer's inputs."""
