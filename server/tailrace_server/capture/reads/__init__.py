"""Reads that end: a range of history, the state of a table. What they share, and how they are opened."""
