"""Measuring models: task metrics, agreement with another model, speed and memory."""
