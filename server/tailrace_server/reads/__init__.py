"""Finite reads, unlike subscriptions: history, the state of a table, and SQL statements."""
