"""Reads of a log as tables of Arrow: the changes, the state or all captures, in parts that threads or tasks read."""
