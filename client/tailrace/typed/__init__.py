"""Rows as Python values, by the catalog's schema of their own version."""
