"""Time to live: rows that are removed when their time is over, as records of operation EXPIRE."""
