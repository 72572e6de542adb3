"""The audit: who was let in or refused, what they asked for and were given, and who changed the rules."""
