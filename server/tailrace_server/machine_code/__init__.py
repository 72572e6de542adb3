"""Machine code made from Python once a machine, kept in a file, and loaded without what made it.

numba compiles loops written in Python. To load numba takes half a second and 30 MiB, and to compile with
it seconds, in which Python's lock is held. So ``builder.py`` does both in a process of its own, and the
result is an object file. ``object_code.py`` loads that in a few milliseconds, by llvmlite alone.

``python -m tailrace_server.machine_code`` makes the files of everything that a server uses.
"""
