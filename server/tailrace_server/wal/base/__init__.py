"""The state of a table: the newest image of each key as of a version, and the files that store it."""
