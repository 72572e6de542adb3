"""Conditions on the values of rows as trees, which programs build without writing SQL."""
