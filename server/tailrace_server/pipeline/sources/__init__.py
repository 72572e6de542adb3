"""Sources: each turns its input into changes, one module each."""
