"""Runs a command that cannot outlive whoever started it; a script of its own, which imports nothing of ours.

``python end_with_parent.py PARENT COMMAND…`` asks the kernel to kill this process when its parent dies (the
wish survives ``exec``) and becomes the command. The parent's number is given along because it may have died
before the wish was made.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command, bound to the parent."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
