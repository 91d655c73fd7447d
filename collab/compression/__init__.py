"""Compression: narrower queries, keys, values and feed-forward layers, and fewer layers, under one budget."""
