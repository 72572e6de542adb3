"""The schema of a catalog: which columns its entity types have, version by version."""
