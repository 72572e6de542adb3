"""A live local copy of a table: its rows as of one version, kept current by changes.

::

    client.state ──▶ rows as of V ─┐
                                   ├──▶ contents: memory, or a SQLite file ──▶ Table, a Mapping
    client.subscribe(after V) ─────┘                                      └──▶ changes(), bounded
         captures → fold: whole versions
"""
