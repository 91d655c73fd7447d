"""Training a converted model: healing against the original, and fine-tuning on a task."""
