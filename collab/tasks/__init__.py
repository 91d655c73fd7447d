"""What a model with a head is for: tasks, their labelled data, predictions and metrics."""
