"""Models: families, attention layers, inputs, outputs, assembly and temporary states."""
