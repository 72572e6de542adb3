"""Observed catalogs: each log opened, tailed, and routed to its publishers."""
