"""The state of a log: adds up its entries, follows new ones, and looks up positions, rows and times."""
