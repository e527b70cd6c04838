"""Every error that reaches a user.

    HeadraceError
    ├── ConfigError              a setting is unknown, malformed or contradicts another
    ├── StateError               the call does not fit the consumer's state
    │   ├── ClosedError          the consumer was closed
    │   ├── ConcurrentUseError   a second thread or task is inside the consumer
    │   └── ForkedError          the consumer was inherited through fork()
    ├── WakeupError              wakeup() was called; nothing was lost
    ├── RequestTimeoutError      no answer within the deadline
    ├── NetworkError             the connection could not be made, or broke
    ├── AuthenticationError      a broker does not let this client in, or is not the one it should be
    ├── ProtocolError            an answer that is not what the protocol allows
    ├── EncodingError            a value that no request can carry
    ├── UnsupportedVersionError  the broker is too old (or too new) for a request
    ├── CorruptRecordError       record bytes that cannot be what a producer wrote
    ├── OffsetResetError         a position is needed and auto.offset.reset is none
    │   ├── OffsetOutOfRangeError
    │   └── LogTruncationError
    └── KafkaError               what a broker answered
        ├── AuthorizationError   an ACL denies a topic, a group or the cluster
        └── CommitFailedError

`retriable` is data on the error, not a class of its own: whether the same call may succeed later without
anything being changed. The message names the host, the request and the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .types import TopicPartition


class HeadraceError(Exception):
    """The base of all errors raised by headrace."""

    retriable: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is unpickled by calling its class with `args`, which are not the constructor's here.
        return _restore, (type(self), self.args, self.__dict__)


class ConfigError(HeadraceError, ValueError):
    """A setting is unknown, malformed, missing, or contradicts another one."""


class StateError(HeadraceError, RuntimeError):
    """The call does not fit the state the consumer is in."""


class ClosedError(StateError):
    """The consumer was closed."""


class ConcurrentUseError(StateError):
    """Another thread or task is inside the consumer. Only `wakeup()` may be called from elsewhere."""


class ForkedError(StateError):
    """The consumer came through `fork()`. Its sockets belong to the parent: make a new one in the child."""


class WakeupError(HeadraceError):
    """`wakeup()` ended the call. No record was lost, and the consumer can be used further."""


class RequestTimeoutError(HeadraceError, TimeoutError):
    """No answer came within the deadline."""

    retriable = True


class NetworkError(HeadraceError, ConnectionError):
    """A connection could not be made, or broke while an answer was awaited."""

    retriable = True


class AuthenticationError(HeadraceError):
    """A broker did not accept who this client is, or could not show who it is itself.

    `step` says where it failed: `tls` (certificates), `token` or `ticket` (there is none to log in with), `handshake`
    (the broker does not offer the mechanism) or `authenticate` (it refused the login). A refused login is not tried
    again by this consumer: with a wrong password that would lock an account.
    """

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step

    @property
    def is_final(self) -> bool:
        """Whether this consumer tries no more. A broker may have a right certificate soon; a login is refused by all
        of them."""
        return self.step != "tls"


class ProtocolError(HeadraceError):
    """A peer sent what the Kafka protocol does not allow. The connection was closed."""


class EncodingError(HeadraceError, ValueError):
    """A value does not fit into the request that should carry it. The request was not sent."""


class UnsupportedVersionError(HeadraceError):
    """No version of a request is known to both sides."""


class CorruptRecordError(HeadraceError):
    """Record bytes that are damaged. `seek()` past `offset` to go on without them."""

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class OffsetResetError(HeadraceError):
    """A partition has no usable position and `auto.offset.reset` is `none`."""

    def __init__(self, message: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(message)
        self.partitions = frozenset(partitions)


class OffsetOutOfRangeError(OffsetResetError):
    """The position lies outside of the log: retention passed it, or it was never there."""

    def __init__(self, message: str, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(message, offsets)
        self.offsets = dict(offsets)


class LogTruncationError(OffsetResetError):
    """An unclean leader election cut off records that were already read.

    `divergence` has, for each partition, the first offset at which the log is no longer the one that was read
    (None where the broker could not tell).
    """

    def __init__(self, message: str, divergence: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(message, divergence)
        self.divergence = dict(divergence)


class KafkaError(HeadraceError):
    """A broker answered with an error code."""

    def __init__(self, code: int, name: str, retriable: bool, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable


class AuthorizationError(KafkaError):
    """This client may not do what it asked for. The message names the topics, the group or the cluster.

    `topics` has the topics that are denied; it is empty when something else is.
    """

    topics: frozenset[str] = frozenset()


class CommitFailedError(KafkaError):
    """The group rejected the commit, and will reject it later as well.

    `partitions` are those that were rejected while all others of the same commit were committed: their topics were
    deleted. It is empty if nothing was committed.
    """

    partitions: frozenset[TopicPartition] = frozenset()


def _restore(kind: type[HeadraceError], args: tuple[object, ...], state: Mapping[str, object]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
