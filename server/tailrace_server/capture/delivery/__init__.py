"""From publishers to subscribers: rings, queues, demand, and the moves between live and resync."""
