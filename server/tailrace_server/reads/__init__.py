"""Reads that end: history, the state of a table, statements in SQL."""
