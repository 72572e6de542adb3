"""Latest per key: of what a reader has behind it, the newest record of each key alone."""
