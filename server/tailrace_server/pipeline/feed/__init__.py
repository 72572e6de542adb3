"""Feeds: sources that give whole transactions in order, written to a catalog by one process without Spark."""
