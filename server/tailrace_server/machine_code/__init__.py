"""Loops that are compiled once a machine, stored in a file, and loaded without the compiler.

``python -m tailrace_server.machine_code`` makes the file: ``builder.py`` compiles ``loops/`` by numba, and
``elf.py`` links the result to one piece of code that needs nothing from outside. ``loader.py`` maps that piece
into a process in about a millisecond. Where there is no file, each caller has a plain way in Python.
"""
