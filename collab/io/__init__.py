"""Reading checkpoints, and writing them whole or not at all, with card, history and report."""
