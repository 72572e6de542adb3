"""Numbered objects beside the log that any process may change: settings, definitions, named subscriptions."""
