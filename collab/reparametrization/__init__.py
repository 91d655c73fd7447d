"""One attention layer as a problem: its weights and the moments of its inputs, rewritten as shared projections."""
