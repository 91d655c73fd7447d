"""How fast models are, how much memory they take, and how large they are."""
