"""Named subscriptions: a reader's place, kept with the log, and what retention holds for it."""
