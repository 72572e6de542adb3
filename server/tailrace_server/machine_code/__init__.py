"""Compiled loops: compiled once on each machine, stored in a file, and loaded without the compiler.

``python -m tailrace_server.machine_code`` makes the file: ``builder.py`` compiles ``loops/`` by numba, and
``elf.py`` links the result to one piece of code that calls nothing outside of itself. ``loader.py`` maps this
code into a process in about a millisecond. If there is no file, each caller uses an implementation in Python.
"""
