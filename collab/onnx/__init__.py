"""Models as ONNX graphs: inputs → graph → check against PyTorch → int8 → a folder."""
