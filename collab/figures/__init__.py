"""Figures that commands draw."""
