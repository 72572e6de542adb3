"""Captures on stdout: their forms, and how the lines get there."""
