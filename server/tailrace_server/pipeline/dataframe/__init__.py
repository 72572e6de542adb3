"""Spark DataFrames written to a log and read from it: `format("tailrace")` in batch and stream."""
