"""All errors that tailrace raises, as a tree of classes.

::

    TailraceError
    ├── InvalidRequest            the caller's mistake: criteria, demand, start
    │   ├── CursorInvalid         the text is not a cursor
    │   ├── CatalogUnknown        no such catalog; carries the known ones
    │   ├── EntityTypeUnknown     no such entity type; carries the known ones
    │   ├── RowUnknown            no row of that key as of a version
    │   ├── SubscriptionUnknown   no named subscription of that name; carries the known ones
    │   ├── SubscriptionExists    the name of a subscription is taken
    │   ├── SubscriptionPaused    a named subscription takes no readers now
    │   └── Unsupported           a field or value that this server does not know or has not built
    ├── PositionCompacted         left the log; carries oldest and newest position
    ├── BodiesExpired             the bodies of a record left the log; carries the oldest ones
    ├── DeadlineExceeded          the version waited for was not published in time   (retriable)
    ├── ImagesMissing             a record lacks an image that its encoding needs; names version and key
    ├── TableFileError            the file of a live table has other contents, or cannot be used
    ├── ValueNotHeld              Python's type for a column cannot hold a value of it
    ├── CatalogReplaced           the cursor or subscription belongs to another log, or the catalog was dropped
    ├── CursorAhead               the log ends before the cursor; carries where it ends
    ├── ColumnsChanged            a column was dropped, or another column has its name now
    ├── HistoryReplaced           the log was restored from an older copy and written anew
    ├── SubscriptionClosed        you closed it
    ├── SubscriptionBroken        the other side or the network ended it      (retriable)
    │   ├── HeartbeatMissed       nothing came for longer than the server announced
    │   ├── SubscriberTooSlow     a write stayed blocked past the send deadline
    │   ├── SubscriptionOverrun   the ring dropped captures, overrun policy DISCONNECT (not retriable)
    │   ├── ServerStopping        graceful stop
    │   ├── TokenExpired          the token has expired; a retry helps with a new one
    │   ├── SubscriptionTakenOver another reader reads the named subscription now (not retriable)
    │   └── EndedByOperator       an operator ended it, with a reason        (not retriable)
    ├── Unauthenticated           no credential, or one that this server does not accept
    ├── NotPermitted              the caller is known, but lacks a grant
    ├── QuotaExceeded             the caller has reached a quota              (retriable)
    ├── ServerFull                no room in the server's memory for this request  (retriable)
    ├── TransportError            the connection failed before a subscription was open  (retriable)
    │   ├── ConnectTimeout        the server could not be reached in time
    │   ├── NotGrpc               another protocol answers at that address
    │   └── TlsFailed             the TLS handshake failed; says which side is to blame, and why
    ├── LogError                  the write-ahead log, on the server or in a pipeline
    │   ├── LogCorrupted          a committed byte is wrong: segment and byte offset
    │   ├── LogMissing            the folder of a catalog that was not dropped is gone (retriable)
    │   ├── LogUnreadable         a folder that is not a log, a newer format, no permission
    │   ├── LogFull               no room left on the device                   (retriable)
    │   ├── WriterFenced          a newer writer owns the catalog; names it
    │   └── UnknownWriter         the catalog has another writer, and a takeover was not permitted
    └── InternalError             our bug; never retried

``code`` is the machine-readable code that every transport carries (google.rpc.ErrorInfo.reason on gRPC).
``figures()`` returns the values of an error as texts, by name. All errors can be pickled, since a Spark worker
may raise them.

Each family of errors has a module in this folder. Import the classes from here.
"""

from __future__ import annotations

from tailrace.errors.endings import ConnectTimeout as ConnectTimeout
from tailrace.errors.endings import EndedByOperator as EndedByOperator
from tailrace.errors.endings import HeartbeatMissed as HeartbeatMissed
from tailrace.errors.endings import NotGrpc as NotGrpc
from tailrace.errors.endings import NotPermitted as NotPermitted
from tailrace.errors.endings import QuotaExceeded as QuotaExceeded
from tailrace.errors.endings import ServerFull as ServerFull
from tailrace.errors.endings import ServerStopping as ServerStopping
from tailrace.errors.endings import SubscriberTooSlow as SubscriberTooSlow
from tailrace.errors.endings import SubscriptionBroken as SubscriptionBroken
from tailrace.errors.endings import SubscriptionClosed as SubscriptionClosed
from tailrace.errors.endings import SubscriptionOverrun as SubscriptionOverrun
from tailrace.errors.endings import TlsFailed as TlsFailed
from tailrace.errors.endings import TokenExpired as TokenExpired
from tailrace.errors.endings import TransportError as TransportError
from tailrace.errors.endings import Unauthenticated as Unauthenticated
from tailrace.errors.history import BodiesExpired as BodiesExpired
from tailrace.errors.history import CatalogReplaced as CatalogReplaced
from tailrace.errors.history import ColumnsChanged as ColumnsChanged
from tailrace.errors.history import CursorAhead as CursorAhead
from tailrace.errors.history import DeadlineExceeded as DeadlineExceeded
from tailrace.errors.history import HistoryReplaced as HistoryReplaced
from tailrace.errors.history import ImagesMissing as ImagesMissing
from tailrace.errors.history import PositionCompacted as PositionCompacted
from tailrace.errors.history import again as again
from tailrace.errors.history import forget_frames as forget_frames
from tailrace.errors.history import kept as kept
from tailrace.errors.log import LogCorrupted as LogCorrupted
from tailrace.errors.log import LogError as LogError
from tailrace.errors.log import LogFull as LogFull
from tailrace.errors.log import LogMissing as LogMissing
from tailrace.errors.log import LogUnreadable as LogUnreadable
from tailrace.errors.log import TableFileError as TableFileError
from tailrace.errors.log import UnknownWriter as UnknownWriter
from tailrace.errors.log import ValueNotHeld as ValueNotHeld
from tailrace.errors.log import WriterFenced as WriterFenced
from tailrace.errors.requests import CatalogUnknown as CatalogUnknown
from tailrace.errors.requests import CursorInvalid as CursorInvalid
from tailrace.errors.requests import EntityTypeUnknown as EntityTypeUnknown
from tailrace.errors.requests import InvalidRequest as InvalidRequest
from tailrace.errors.requests import RowUnknown as RowUnknown
from tailrace.errors.requests import SubscriptionExists as SubscriptionExists
from tailrace.errors.requests import SubscriptionPaused as SubscriptionPaused
from tailrace.errors.requests import SubscriptionTakenOver as SubscriptionTakenOver
from tailrace.errors.requests import SubscriptionUnknown as SubscriptionUnknown
from tailrace.errors.requests import Unsupported as Unsupported
from tailrace.errors.tree import InternalError as InternalError
from tailrace.errors.tree import TailraceError as TailraceError

# Tracebacks, pickles and logs name a class by its module. Set it to the public name, which users import from.
for _each in tuple(globals().values()):
    if isinstance(_each, type) and issubclass(_each, TailraceError):
        _each.__module__ = __name__
del _each
