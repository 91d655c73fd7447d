"""Models as graphs: inputs → trace → int8 or OpenVINO → check against PyTorch; and graphs that run like models."""
