"""Loops over columns, written in the part of Python that numba compiles; only ``builder.py`` imports them.

Each public function takes addresses and numbers, all int64, and returns an int64. A column is given by the
addresses of its buffers in Arrow's layout. The caller must keep the memory at these addresses alive until the
call returns, and must make outputs as long as the docstring says: no loop checks bounds.
"""
