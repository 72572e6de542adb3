"""Reads that end: a range of history, the state of a table. Their common part, and how they are opened."""
