"""The schema of a catalog: the columns of its entity types, version by version."""
