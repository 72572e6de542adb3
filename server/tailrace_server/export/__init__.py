"""Export of one entity type from a log, as a Materialize CDC stream (docs/cdcv2-export.md)."""
