"""From lines of a source to whole transactions in the log, batch by batch."""
