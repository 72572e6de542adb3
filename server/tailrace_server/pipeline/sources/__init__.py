"""Sources: each turns its lines into changes and has a folder; `input.source` is their interface."""
