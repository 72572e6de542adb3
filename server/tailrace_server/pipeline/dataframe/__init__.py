"""Spark DataFrames as a source and a sink: `spark.read` and `df.write` with `format("tailrace")`."""
