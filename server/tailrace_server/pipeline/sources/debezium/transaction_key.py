"""Debezium's transaction ids, in the form that all rows of a transaction share."""

from __future__ import annotations

import re

_POSTGRES_ID = re.compile(r"(\d+):\d+", re.ASCII)


def transaction_key(transaction_id: str) -> str:
    """Return the form of a transaction id that all rows of the transaction share.

    PostgreSQL's ids read ``<transaction>:<LSN>``, and the LSN differs between BEGIN, the rows and
    END; only the part before the colon names the transaction. Other sources' ids are taken as they
    are.

    Source: Debezium documentation, PostgreSQL connector, transaction metadata.
    """
    found = _POSTGRES_ID.fullmatch(transaction_id)
    return found[1] if found else transaction_id
