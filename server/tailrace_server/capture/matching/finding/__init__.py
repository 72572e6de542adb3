"""The conditions of all publishers on one table: which rows of a batch they are found by, and told of."""
