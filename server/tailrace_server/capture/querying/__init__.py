"""Statements in SQL over the log of a catalog that is open: run in threads, answered as they are read."""
