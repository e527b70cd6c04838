"""Incremental fetch sessions (KIP-227): a request contains only what changed since the last one.

    (id, epoch) of the request      what it means
    (0, 0)                          full: all partitions; the broker opens a session
    (id, n) with n = 1, 2, 3, …     incremental: only what is new, changed or forgotten
    (id, 0)                         full: the broker closes that session and opens another

    response                                                      next request
    ok, session id                                                incremental, n + 1 (after 2^31-1 comes 1)
    ok, session id 0 (no room for a session)                      (0, 0)
    FETCH_SESSION_ID_NOT_FOUND                                    (0, 0)
    INVALID_FETCH_SESSION_EPOCH, …_TOPIC_ID_ERROR, no response    (id, 0)

A partition whose offset moved must be sent again, or the broker returns the same records again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ..cluster import TopicIdPartition

_LAST_EPOCH = 2**31 - 1


class PartitionRequest(NamedTuple):
    """The request for a partition. It is sent again when any of it changes."""

    offset: int
    leader_epoch: int
    max_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRequest:
    session_id: int
    epoch: int
    send: Mapping[TopicIdPartition, PartitionRequest]
    forget: tuple[TopicIdPartition, ...]


class FetchSession:
    """One session with one broker. At most one request of it is in flight."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._sent: dict[TopicIdPartition, PartitionRequest] = {}

    @property
    def is_incremental(self) -> bool:
        return self._epoch > 0

    def request(
        self, wanted: Mapping[TopicIdPartition, PartitionRequest], changed: Iterable[TopicIdPartition]
    ) -> SessionRequest:
        """The next request, for all partitions in `wanted`. Those whose request is another one than the last time must
        be in `changed`, and others may."""
        if not self.is_incremental:
            self._sent = dict(wanted)
            return SessionRequest(self._id, 0, self._sent, ())
        send: dict[TopicIdPartition, PartitionRequest] = {}
        forget: list[TopicIdPartition] = []
        for tip in changed:
            want = wanted.get(tip)
            if want is None:
                if self._sent.pop(tip, None) is not None:
                    forget.append(tip)
            elif self._sent.get(tip) != want:
                self._sent[tip] = send[tip] = want
        return SessionRequest(self._id, self._epoch, send, tuple(forget))

    def answered(self, error_code: int, session_id: int) -> None:
        if error_code == ErrorCode.fetch_session_id_not_found:
            self._id = 0
            self._epoch = 0
        elif error_code:
            self._epoch = 0
        elif session_id == 0:
            self._id = 0
            self._epoch = 0
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def repeated(self, sent: Mapping[TopicIdPartition, PartitionRequest]) -> None:
        """A response came without an error, and was followed by a request for these partitions."""
        self.answered(0, self._id)
        self._sent.update(sent)

    def broken(self) -> None:
        """No response came, or none that can be used."""
        self._epoch = 0

    def close_request(self) -> SessionRequest | None:
        """The request that closes the session, if there is one to close."""
        return SessionRequest(self._id, -1, {}, ()) if self._id else None
