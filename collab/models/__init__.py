"""What a model is: families, attention layers, inputs, outputs, assembly and temporary states."""
