"""Named subscriptions: their readers, durable places and owners."""
