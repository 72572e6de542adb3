"""Reads of a log as Arrow tables: changes, state or captures, in parts that threads or Spark tasks read."""
