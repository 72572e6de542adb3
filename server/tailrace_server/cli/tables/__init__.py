"""``tailrace state``: a table as of one version, for a person, for a pipe, or into a file."""
