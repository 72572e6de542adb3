"""Rights of a caller to rows and columns: what a policy grants of tables and views, applied to requests."""
