"""``tailrace demo``: a source, Spark, the server and subscribers as real processes, and a check at the end."""
