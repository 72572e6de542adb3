"""SQL over a log: every entity type is a table of its newest state, of an earlier one, or of its changes.

::

    text ──▶ statements.py   the tables that it reads, the needed part of each, and the text for DuckDB
         ──▶ scans.py        the log as Arrow batches, only of the needed columns, keys and versions
         ──▶ duck/           a DuckDB that can only compute, in this process or in another
         ──▶ query.py        the whole run: batches of the answer, as they are computed
"""
