"""The engine: it opens the catalogs of a log root, and is the only interface that faces use."""
