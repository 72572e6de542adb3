"""Rows as Python values, by the schema of the version that wrote each row."""
