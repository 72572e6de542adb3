"""The published log as the engine reads it: each batch once for all readers, through one bounded cache."""
