"""Sources: each turns the lines of its input into changes, one folder each; `source` says how."""
