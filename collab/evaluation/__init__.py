"""How good a model is at its task, and how it compares with another."""
