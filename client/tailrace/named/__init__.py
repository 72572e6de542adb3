"""Named subscriptions, whose place the server keeps with the log."""
