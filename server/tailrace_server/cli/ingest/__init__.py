"""``tailrace ingest``: a command for each source, which writes its changes to a catalog."""
