"""``tailrace catalog``: the catalogs of a log root or a server, and what is set of them."""
