"""Data as models take it: sources, rows with labels or without, features and batches."""
