"""What columns a catalog has, version by version."""
