"""Segments: Arrow files of records, written once, read in part."""
