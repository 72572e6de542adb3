"""Quotas: how much one principal, and one address, may have at once or in a second."""
