"""The conditions of all publishers on one table: the rows of a batch that match each of them."""
