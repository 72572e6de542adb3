"""tailrace: subscribe to the changes of tables that a pipeline maintains.

::

    async with tailrace.connect("127.0.0.1:7411") as client:
        async with client.subscribe("shop", Criteria(entity_type=("product",))) as captures:
            async for capture in captures:
                ...
"""

from __future__ import annotations

from tailrace.acknowledgement import Acknowledgement, Limits
from tailrace.capture import Capture, Heartbeat, StateComplete
from tailrace.checkpoint import CheckpointStore, FileCheckpoint
from tailrace.client import Client, connect
from tailrace.criteria import (
    After,
    Area,
    CaptureKind,
    CatchUp,
    ContainerType,
    Content,
    Criteria,
    FromState,
    FromTime,
    Initial,
    Operation,
    OverrunPolicy,
    Since,
    Start,
    Transition,
)
from tailrace.cursor import Cursor
from tailrace.errors import (
    BodiesExpired,
    CatalogReplaced,
    CatalogUnknown,
    ColumnsChanged,
    ConnectTimeout,
    CursorAhead,
    CursorInvalid,
    DeadlineExceeded,
    EndedByOperator,
    EntityTypeUnknown,
    HeartbeatMissed,
    HistoryReplaced,
    ImagesMissing,
    InternalError,
    InvalidRequest,
    LogCorrupted,
    LogError,
    LogFull,
    LogUnreadable,
    NotGrpc,
    NotPermitted,
    PositionCompacted,
    QuotaExceeded,
    RowUnknown,
    ServerFull,
    ServerStopping,
    SubscriberTooSlow,
    SubscriptionBroken,
    SubscriptionClosed,
    SubscriptionExists,
    SubscriptionOverrun,
    SubscriptionPaused,
    SubscriptionTakenOver,
    SubscriptionUnknown,
    TableFileError,
    TailraceError,
    TlsFailed,
    TokenExpired,
    TransportError,
    Unauthenticated,
    UnknownWriter,
    Unsupported,
    ValueNotHeld,
    WriterFenced,
)
from tailrace.link import Disconnected, Reconnected
from tailrace.named.values import NamedSubscription, SubscriptionHealth
from tailrace.position import END, Position, TimestampMicros
from tailrace.reactive import Publisher, Subscriber
from tailrace.reads.history import History, HistoryEnd, HistoryHeader
from tailrace.reads.state import State, StateEnd, StateHeader, StateRow
from tailrace.retry import Retry, Timeouts
from tailrace.schema import Catalog, Column, Origin, Schema
from tailrace.sql.answer import AnswerEnd, AnswerHeader, SqlArrow, SqlRows
from tailrace.sql.poll import Poll
from tailrace.subscription import Subscription, SubscriptionStatistics
from tailrace.table.changes import LiveChanges, TableRestarted
from tailrace.table.contents import TableChange
from tailrace.table.table import Table
from tailrace.tls import Tls
from tailrace.update_subscription import Row, UpdateSubscription

__all__ = [
    "END",
    "Acknowledgement",
    "After",
    "AnswerEnd",
    "AnswerHeader",
    "Area",
    "BodiesExpired",
    "Capture",
    "CaptureKind",
    "Catalog",
    "CatalogReplaced",
    "CatalogUnknown",
    "CatchUp",
    "CheckpointStore",
    "Client",
    "Column",
    "ColumnsChanged",
    "ConnectTimeout",
    "ContainerType",
    "Content",
    "Criteria",
    "Cursor",
    "CursorAhead",
    "CursorInvalid",
    "DeadlineExceeded",
    "Disconnected",
    "EndedByOperator",
    "EntityTypeUnknown",
    "FileCheckpoint",
    "FromState",
    "FromTime",
    "Heartbeat",
    "HeartbeatMissed",
    "History",
    "HistoryEnd",
    "HistoryHeader",
    "HistoryReplaced",
    "ImagesMissing",
    "Initial",
    "InternalError",
    "InvalidRequest",
    "Limits",
    "LiveChanges",
    "LogCorrupted",
    "LogError",
    "LogFull",
    "LogUnreadable",
    "NamedSubscription",
    "NotGrpc",
    "NotPermitted",
    "Operation",
    "Origin",
    "OverrunPolicy",
    "Poll",
    "Position",
    "PositionCompacted",
    "Publisher",
    "QuotaExceeded",
    "Reconnected",
    "Retry",
    "Row",
    "RowUnknown",
    "Schema",
    "ServerFull",
    "ServerStopping",
    "Since",
    "SqlArrow",
    "SqlRows",
    "Start",
    "State",
    "StateComplete",
    "StateEnd",
    "StateHeader",
    "StateRow",
    "Subscriber",
    "SubscriberTooSlow",
    "Subscription",
    "SubscriptionBroken",
    "SubscriptionClosed",
    "SubscriptionExists",
    "SubscriptionHealth",
    "SubscriptionOverrun",
    "SubscriptionPaused",
    "SubscriptionStatistics",
    "SubscriptionTakenOver",
    "SubscriptionUnknown",
    "Table",
    "TableChange",
    "TableFileError",
    "TableRestarted",
    "TailraceError",
    "Timeouts",
    "TimestampMicros",
    "Tls",
    "TlsFailed",
    "TokenExpired",
    "Transition",
    "TransportError",
    "Unauthenticated",
    "UnknownWriter",
    "Unsupported",
    "UpdateSubscription",
    "ValueNotHeld",
    "WriterFenced",
    "connect",
]
