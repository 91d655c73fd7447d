"""Inspecting, scoring and pruning the heads of a model, original or converted."""
