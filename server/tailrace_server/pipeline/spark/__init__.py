"""Spark itself: sessions, its Java runtime, its checkpoints, its errors."""
