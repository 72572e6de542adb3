"""Loops over columns, written in the Python that numba compiles; only ``builder.py`` imports them.

Each public function takes addresses and numbers, all int64, and returns an int64. A column is given as the
addresses of its buffers in Arrow's layout. The callers make sure that the memory at the addresses lives
until the call returns, and that outputs are as long as the docstring says: no loop checks a bound.
"""
