"""Export of a catalog's tables as Delta tables, and the gate of publication (docs/delta-export.md)."""
