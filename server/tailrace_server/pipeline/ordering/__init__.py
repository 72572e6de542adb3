"""The order of two changes of a row, by the source's positions and clock; rows that a snapshot lacks."""
