"""Reads the log for the engine: through one bounded cache, in reader threads."""
