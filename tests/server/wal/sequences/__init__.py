"""Tests of the numbered objects beside the log."""
