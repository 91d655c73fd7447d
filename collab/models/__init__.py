"""What a model is: families, attention layers, inputs, assembly, and the states it can be put into for a while."""
