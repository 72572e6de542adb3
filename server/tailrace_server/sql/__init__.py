"""SQL over a log: every entity type is a table of its newest state, of an earlier one, or of its changes.

::

    text ──▶ statements.py   which tables it reads, and what of each; the text that DuckDB runs
         ──▶ scans.py        the log, as Arrow batches of these columns, keys and versions alone
         ──▶ duck/           a DuckDB that can do nothing but compute, here or in a process
         ──▶ query.py        both together: batches of the answer, as they come
"""
