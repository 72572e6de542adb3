"""The Spark pipeline: from a source's changes to commits of the log."""
