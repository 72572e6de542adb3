"""A script that runs a command which cannot outlive its parent process; it imports only the standard library.

``python end_with_parent.py PARENT COMMAND…`` requests that the kernel kill this process when its parent dies,
and then becomes the command; the request survives ``exec``. The parent's process id is an argument because the
parent may have died before the request.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command, which the kernel kills when the parent dies."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
