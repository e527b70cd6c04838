"""Every error that reaches a user.

    HeadraceError
    ├── ConfigError              a setting or argument is unknown, invalid, missing, or contradicts another
    ├── StateError               the client is in the wrong state for the call
    │   ├── ClosedError          the client is closed
    │   ├── ConcurrentUseError   another thread or task is using the client
    │   └── ForkedError          the client was created before a fork()
    ├── WakeupError              wakeup() was called; no record was lost
    ├── RequestTimeoutError      no response before the deadline
    ├── NetworkError             a connection could not be opened, or broke
    ├── AuthenticationError      the login or the TLS handshake was rejected
    ├── ProtocolError            a response violates the Kafka protocol
    │   └── UnexpectedResponseError  it answers no request of this client; also a NetworkError
    ├── EncodingError            a value does not fit into its field of a request
    ├── UnsupportedVersionError  client and broker share no version of a request
    ├── CorruptRecordError       a record batch is damaged
    ├── RecordDecodeError        a record's key or value is not what its format says
    ├── RecordEncodeError        a row cannot be encoded as a key or value, and was not sent
    ├── SchemaRegistryError      a schema registry cannot be reached, or rejected a request
    │   └── SchemaNotFoundError  it does not have this schema, subject or version
    ├── RecordTooLargeError      a record exceeds max.request.size or buffer.memory, and was not sent
    ├── OffsetResetError         there is no valid position, and auto.offset.reset is none
    │   ├── OffsetOutOfRangeError  the position is outside of the log
    │   └── LogTruncationError     the log was truncated below the position
    ├── TransactionError         a transaction failed
    │   ├── TransactionAbortableError  abort the transaction, and repeat it
    │   └── TransactionFatalError      close the producer
    │       └── ProducerFencedError    a new producer may continue
    ├── PartialFailureError      an admin client's change succeeded for some partitions only
    └── KafkaError               a broker returned an error code
        ├── AuthorizationError   an ACL denies access to a topic, a group or the cluster
        ├── CommitFailedError    the group rejected the commit
        └── GroupNotEmptyError   the group has members, and the change needs a group without members

`retriable` is an attribute of every error, not a class: it says whether the same call may succeed later without any
change by the user. The message names the host, the request and the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from .types import TopicPartition

if TYPE_CHECKING:  # `import headrace` does not need it
    from .admin import MemberDescription


class HeadraceError(Exception):
    """The base of all errors raised by headrace."""

    retriable: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        # By default an exception is unpickled by calling its class with `args`, which are not the constructor's
        # arguments here.
        return _restore, (type(self), self.args, self.__dict__)


class ConfigError(HeadraceError, ValueError):
    """A setting, or an argument that names topics or partitions, is unknown, invalid or missing, or contradicts
    another one."""


class StateError(HeadraceError, RuntimeError):
    """The client is in the wrong state for this call."""


class ClosedError(StateError):
    """The client is closed."""


class ConcurrentUseError(StateError):
    """Another thread or task is using the client.

    A `Consumer` or `ShareConsumer` serves one thread at a time. Other threads may call `wakeup()`, `metrics()`,
    `done()`, `in_flight()` and `acknowledge()` meanwhile. An `AsyncConsumer` or `AsyncShareConsumer` raises this error
    when a second task calls `poll()` before the first `poll()` has returned.
    """


class ForkedError(StateError):
    """The client was created before a `fork()` and is used in the child process. Its sockets belong to the parent:
    create a new client in the child."""


class WakeupError(HeadraceError):
    """`wakeup()` interrupted the call. No record was lost, and the client can still be used."""


class RequestTimeoutError(HeadraceError, TimeoutError):
    """No response arrived before the deadline."""

    retriable = True


class NetworkError(HeadraceError, ConnectionError):
    """A connection could not be opened, or it broke while a request was in flight."""

    retriable = True


class AuthenticationError(HeadraceError):
    """A broker rejected this client's credentials, or this client rejected the broker's certificate or signature.

    `step` says where authentication failed: `tls` (certificates), `token` or `ticket` (no token or Kerberos ticket was
    issued), `handshake` (the broker does not offer the mechanism) or `authenticate` (the login was rejected). The
    client does not retry a rejected login: with a wrong password, retries could lock the account.
    """

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step

    @property
    def is_final(self) -> bool:
        """Whether this client stops retrying. TLS errors are retried, because a certificate may be renewed or
        another broker may have a valid one. A rejected login is final, because all brokers would reject it."""
        return self.step != "tls"


class ProtocolError(HeadraceError):
    """A peer sent bytes that violate the Kafka protocol. The connection was closed."""


class UnexpectedResponseError(NetworkError, ProtocolError):
    """A peer sent a response to a request that this client did not send, or sent responses in another order. The
    connection was closed, and its requests can be sent again on another one."""


class EncodingError(HeadraceError, ValueError):
    """A value does not fit into its field of a request. The request was not sent."""


class UnsupportedVersionError(HeadraceError):
    """Client and broker have no version of a request in common."""


class CorruptRecordError(HeadraceError):
    """A record batch is damaged. To skip it, `seek()` past `offset`."""

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class RecordDecodeError(HeadraceError, ValueError):
    """A record's key or value cannot be decoded. `field` is "key" or "value", or in Spark also "timestamp"; `reason`
    says what is wrong, and where.

    The position of the consumer is not affected: decode the same records again with `errors="null"`, or skip this one.
    """

    def __init__(self, partition: TopicPartition, offset: int, field: str, reason: str) -> None:
        super().__init__(f"cannot decode the {field} at offset {offset} of {partition}: {reason}")
        self.partition = partition
        self.offset = offset
        self.field = field
        self.reason = reason


class RecordEncodeError(HeadraceError, ValueError):
    """A row of Arrow data cannot be encoded as a record's key or value. `row` is its number, from 0 on. It was not
    sent."""

    def __init__(self, row: int, field: str, reason: str) -> None:
        super().__init__(f"cannot encode the {field} of row {row}: {reason}")
        self.row = row
        self.field = field
        self.reason = reason


class SchemaRegistryError(HeadraceError):
    """A schema registry could not be reached, or it rejected a request. The message names its address.

    `status` is the HTTP status, and `code` the registry's own error code, if there are any. `scope` is "schema" if the
    registry refuses or lacks this schema only, and "registry" if other requests would fail as well. No record is lost
    or skipped: repeat the call that raised it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: int | None = None,
        retriable: bool = False,
        scope: Literal["registry", "schema"] = "registry",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retriable = retriable
        self.scope = scope


class SchemaNotFoundError(SchemaRegistryError):
    """The registry does not have this schema, subject or version. It may be registered later."""

    def __init__(self, message: str, *, status: int | None = None, code: int | None = None) -> None:
        super().__init__(message, status=status, code=code, scope="schema")


class RecordTooLargeError(HeadraceError, ValueError):
    """A record exceeds `max.request.size` or `buffer.memory`. It was not sent."""


class OffsetResetError(HeadraceError):
    """A partition has no valid position, and `auto.offset.reset` is `none`."""

    def __init__(self, message: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(message)
        self.partitions = frozenset(partitions)


class OffsetOutOfRangeError(OffsetResetError):
    """The position is outside of the log: retention has deleted that offset, or the log never reached it."""

    def __init__(self, message: str, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(message, offsets)
        self.offsets = dict(offsets)


class LogTruncationError(OffsetResetError):
    """The log was truncated below the position, for example by an unclean leader election.

    `divergence` maps each partition to the first offset at which the log differs from the one that was consumed, or to
    None if the broker does not know it.
    """

    def __init__(self, message: str, divergence: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(message, divergence)
        self.divergence = dict(divergence)


class TransactionError(HeadraceError):
    """A transaction failed. `abortable` says whether this producer can continue: if True, abort the transaction and
    repeat it; if False, close the producer. `__cause__` is the error that made the transaction fail.

    A call that only timed out raises a `RequestTimeoutError` instead: call it again.
    """

    abortable: bool = False


class TransactionAbortableError(TransactionError):
    """The transaction cannot be committed. Abort it; then the producer can be used again."""

    abortable = True


class TransactionFatalError(TransactionError):
    """The producer cannot be used any more. Close it."""


class ProducerFencedError(TransactionFatalError):
    """The coordinator no longer accepts this producer: another one with its transactional.id has started, or its
    transaction timed out. Close it. A new producer can continue, unless another one has replaced this one on purpose.
    """


class PartialFailureError(HeadraceError):
    """A change of an `Admin` succeeded for some partitions only, or failed for all of them with different errors.

    `errors` maps each partition (or topic) that failed to its error. `done` contains all others: they were changed.
    """

    def __init__(
        self,
        message: str,
        errors: Mapping[TopicPartition, HeadraceError] | Mapping[str, HeadraceError],
        done: frozenset[TopicPartition] | frozenset[str],
    ) -> None:
        super().__init__(message)
        self.errors: dict[TopicPartition | str, HeadraceError] = dict(errors.items())
        self.done: frozenset[TopicPartition | str] = frozenset(done)


class KafkaError(HeadraceError):
    """A broker returned an error code."""

    def __init__(self, code: int, name: str, retriable: bool, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable


class AuthorizationError(KafkaError):
    """An ACL denies the request. The message names the topics, the group or the cluster.

    `topics` contains the denied topics. It is empty if the request was denied for another resource.
    """

    topics: frozenset[str] = frozenset()


class CommitFailedError(KafkaError):
    """The group rejected the commit. Retrying it will not succeed.

    If only some partitions were rejected, because their topics were deleted, `partitions` contains them, and the
    others were committed. If nothing was committed, `partitions` is empty.
    """

    partitions: frozenset[TopicPartition] = frozenset()


class GroupNotEmptyError(KafkaError):
    """The group has members, and the change needs a group without members. Nothing was changed.

    `members` contains them. It is empty if they have left meanwhile.
    """

    members: tuple[MemberDescription, ...] = ()


def _restore(kind: type[HeadraceError], args: tuple[object, ...], state: Mapping[str, object]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
