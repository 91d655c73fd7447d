"""Calibration: the moments of every attention layer's inputs, on data of any kind."""
