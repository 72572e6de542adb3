"""Row filters: conditions on the values of rows, in the words of SQL.

::

    text ──parsing──▶ tree ──binding, by the schema──▶ RowFilter ──▶ a mask: true, false, unknown
"""
