"""The tailrace server: the log, the Spark pipeline, the capture engine and its faces."""
