"""The state of a log: its entries added up, followed as they appear, looked up by position, row or time."""
