"""Reading the log for the engine: every read goes through one bounded cache, in reader threads."""
