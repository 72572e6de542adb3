"""The conditions of all publishers on one table, indexed by values to find the rows that match each."""
