"""The share session with one broker (KIP-932): its partitions, and its epoch.

    epoch    what it means
    0        open a session, and replace an existing one; without acknowledgements
    n        the n-th request of the session: 1, 2, 3, … and after 2^31-1 comes 1
    -1       close it, with the last acknowledgements

    answer                                                  next request
    ok, or an error that does not concern the session       n + 1: the broker has counted the request
    SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED, INVALID_REQUEST            0: the broker has not processed the request
    no answer                                               0: session and locks end with the connection

- ShareFetch and ShareAcknowledge have one epoch. A session belongs to the connection that opened it.
- A request names a partition only when it is added to or removed from the session. An acknowledgement in a ShareFetch
  adds its partition, one in a ShareAcknowledge does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from kio.schema.errors import ErrorCode

from ..cluster import TopicIdPartition

_OPEN = 0
_CLOSE = -1
_LAST_EPOCH = 2**31 - 1

# The broker rejected the whole request, before it processed any of it. INVALID_REQUEST is among these errors because
# some of its causes are found before the broker counts the request, and some after: reopening the session fits both.
REFUSED = {
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
    ErrorCode.share_session_limit_reached,
    ErrorCode.invalid_request,
}


@dataclasses.dataclass(frozen=True, slots=True)
class SessionFetch:
    """The session fields of a ShareFetch."""

    epoch: int
    add: frozenset[TopicIdPartition]
    forget: frozenset[TopicIdPartition]


class ShareSession:
    """At most one request is in flight."""

    def __init__(self) -> None:
        self._epoch = _OPEN
        self._partitions: frozenset[TopicIdPartition] = frozenset()

    @property
    def is_open(self) -> bool:
        return self._epoch != _OPEN

    def fetch(self, wanted: Collection[TopicIdPartition]) -> SessionFetch:
        """The request after which exactly these partitions are in the session."""
        now = frozenset(wanted)
        before = self._partitions if self.is_open else frozenset()
        self._partitions = now
        return SessionFetch(self._epoch, now - before, before - now)

    def acknowledge(self) -> int:
        """The epoch of a ShareAcknowledge."""
        assert self.is_open, "a session is opened by a ShareFetch"
        return self._epoch

    def close_request(self) -> int | None:
        """The epoch of the request that closes the session, if it is open."""
        return _CLOSE if self.is_open else None

    def answered(self, code: int) -> None:
        if code in REFUSED:
            self.broken()
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def broken(self) -> None:
        """No answer came, or the broker has dropped the session."""
        self._epoch = _OPEN
        self._partitions = frozenset()
