"""DuckDB, which computes statements and can do nothing else: in this process, or in one beside it."""
