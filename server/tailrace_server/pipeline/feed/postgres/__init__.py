"""PostgreSQL without Debezium: a snapshot of the tables, then the logical replication stream."""
