"""Egress: what a catalog's log says of one entity type, as a Materialize CDC stream (docs/cdcv2-export.md)."""
