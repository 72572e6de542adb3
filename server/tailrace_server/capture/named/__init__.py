"""Named subscriptions in the engine: who reads them, how far they are, and who may."""
