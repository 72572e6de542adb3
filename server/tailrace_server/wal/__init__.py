"""The log: immutable numbered objects in a folder, their writer and their readers."""
