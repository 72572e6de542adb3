"""Grants, applied to criteria, captures and schemas."""
