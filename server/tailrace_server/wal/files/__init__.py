"""The file system below the log: the only place that touches it."""
