"""The published log as the engine reads it: one bounded cache, which reads each batch once for all readers."""
