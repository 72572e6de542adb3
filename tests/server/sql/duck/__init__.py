"""DuckDB in processes beside a server."""
