"""Debezium: its JSON, one message a line, as changes."""
