"""Spark DataFrames written to a log: `df.write` and `df.writeStream` with `format("tailrace")`."""
