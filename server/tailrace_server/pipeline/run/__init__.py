"""A run of an ingest as its operator sees it: options, signals, progress and metrics."""
