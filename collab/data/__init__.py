"""Data for models: sources, rows with or without labels, features and batches."""
