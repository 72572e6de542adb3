"""``python -m tailrace_server``: the ``tailrace`` command, for where its script is not on the path."""

from tailrace_server.cli import main

if __name__ == "__main__":
    main()
