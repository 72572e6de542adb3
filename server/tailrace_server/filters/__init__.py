"""Row filters: conditions on the values of rows, in a subset of SQL.

::

    text ──parsing──▶ tree ──binding, by the schema──▶ RowFilter ──▶ a mask: true, false, unknown
"""
