"""Back from a converted model to the native class that it came from, for servers that know only that."""
