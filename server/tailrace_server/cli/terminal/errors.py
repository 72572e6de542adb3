"""Errors of the command line: one clear line on stderr and an exit status, never a traceback.

======  ====================================================================================
status  meaning
======  ====================================================================================
0       done
1       the command failed while it worked: the log is damaged, the server refused or went away
2       the command could not start: a wrong option or setting, a folder that is not a log or may not be read, a
        port in use, a package that is not installed
3       the command did what was possible, but input is missing; it has printed which
70      a bug in tailrace; ``TAILRACE_TRACEBACK=1`` prints the traceback
130     ended by Ctrl-C
143     ended by SIGTERM
======  ====================================================================================
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, LogUnreadable, TailraceError
from tailrace_server.cli.terminal.output import Palette
from tailrace_server.errors import CannotStart
from tailrace_server.extras import remedy

if TYPE_CHECKING:
    from collections.abc import Callable

DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
INCOMPLETE: Final = 3
BUG: Final = 70
INTERRUPTED: Final = 130
TRACEBACK_VARIABLE: Final = "TAILRACE_TRACEBACK"


def guarded(run: Callable[[], object]) -> int:
    """Run a command and return its exit status; an exception becomes one line on stderr."""
    try:
        status = run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        complain(describe(error))
        return status_of(error)
    return status if isinstance(status, int) else DONE


def complain(message: str) -> None:
    """Write one error line."""
    palette = Palette.of(sys.stderr)
    print(f"{palette.error('error:')} {' '.join(message.split())}", file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """Return the text of an error, for the person who has to correct it."""
    match error:
        case BaseExceptionGroup() if len(error.exceptions) == 1:
            return describe(error.exceptions[0])
        case TailraceError():
            return str(error)
        case ImportError() if (wanted := remedy(error)) is not None:
            return wanted
        case OSError() if error.strerror is not None:
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        case _:
            name = type(error).__name__
            return f"internal error: {name}: {error} (set {TRACEBACK_VARIABLE}=1 for the traceback)"


def status_of(error: BaseException) -> int:
    """Return the exit status of an error."""
    match error:
        case BaseExceptionGroup() if len(error.exceptions) == 1:
            return status_of(error.exceptions[0])
        case InvalidRequest() | LogUnreadable() | CannotStart() | PermissionError():
            return REFUSED
        case ImportError() if remedy(error) is not None:
            return REFUSED
        case TailraceError() | OSError():
            return FAILED
        case _:
            return BUG
