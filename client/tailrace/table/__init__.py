"""A live local copy of a table: its rows as of one version, and the changes as they come.

::

    client.state ──▶ rows as of V ─┐
                                   ├──▶ contents: memory, or a SQLite file ──▶ Table, a Mapping
    client.subscribe(after V) ─────┘                                      └──▶ changes(), bounded
         captures → fold: whole versions
"""
