"""One record: its columns, its key hash, and the checks of its images."""
