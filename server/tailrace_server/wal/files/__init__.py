"""The file system below the log; only this folder touches it."""
