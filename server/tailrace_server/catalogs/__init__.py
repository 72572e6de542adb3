"""Open catalogs: each log is followed, and its new batches are routed to publishers."""
