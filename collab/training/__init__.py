"""Training a converted model: refinement and healing against the original, and fine-tuning on a task."""
