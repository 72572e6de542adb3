"""``tailrace subscription``: named subscriptions, of a log folder or by way of a server."""

from __future__ import annotations
