"""``tailrace ps`` and ``tailrace top``: what the operator's page shows, in a terminal."""
