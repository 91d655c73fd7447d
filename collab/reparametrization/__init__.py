"""Attention layers rewritten with shared projections, from their weights and the moments of their inputs."""
