"""``python -m tailrace_server`` runs the ``tailrace`` command where its script is not on the path."""

from tailrace_server.cli import main

if __name__ == "__main__":
    main()
