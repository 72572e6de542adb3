"""Sources that are tables: files with all rows, and Delta tables with a change feed; neither needs Spark."""
