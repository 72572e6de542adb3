"""DuckDB, restricted to computing statements: in this process or in a separate one."""
