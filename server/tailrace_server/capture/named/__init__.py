"""Named subscriptions in the engine: their readers, their places and the right to use them."""
