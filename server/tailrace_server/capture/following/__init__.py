"""The state that a subscription begins with, before it follows the changes."""
