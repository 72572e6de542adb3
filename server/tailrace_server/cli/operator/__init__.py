"""``tailrace ps`` and ``tailrace top``: the figures of the operator's page, in a terminal."""
