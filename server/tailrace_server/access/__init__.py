"""The doors: who asks, what they may have, how much, and a record of it."""
