"""Numbered objects next to the log that any process may change: settings, definitions, named subscriptions."""
