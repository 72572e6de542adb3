"""The engine: opens the catalogs of a log root, and is the one entrance for every face."""
