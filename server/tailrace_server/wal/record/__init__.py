"""One record of the log: its columns, its key hash, and the checks of its images."""
