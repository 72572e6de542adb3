"""The demo: a source, Spark, the server and subscribers as real processes, with a check at the end."""
