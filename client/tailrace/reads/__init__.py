"""Reads that end: a range of history, the state of a table."""
