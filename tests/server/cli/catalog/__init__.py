"""``tailrace catalog``."""
