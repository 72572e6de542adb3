"""What is set of a catalog, kept in its log."""
