"""Converting a native model to a collaborative one, and back, in memory."""
