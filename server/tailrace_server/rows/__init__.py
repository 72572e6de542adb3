"""Records and rows as Arrow columns, and the conditions that select them."""
