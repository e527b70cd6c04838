"""Incremental fetch sessions (KIP-227): say to the broker only what changed since the last request.

    (id, epoch) of the request      what it means
    (0, 0)                          full: here is everything, please open a session
    (id, n) with n = 1, 2, 3, …     incremental: only what is new, changed or forgotten
    (id, 0)                         full: close that session, open another

    answer                                                        next request
    ok, session id                                                incremental, n + 1 (after 2^31-1 comes 1)
    ok, session id 0 (no room for a session)                      (0, 0)
    FETCH_SESSION_ID_NOT_FOUND                                    (0, 0)
    INVALID_FETCH_SESSION_EPOCH, …_TOPIC_ID_ERROR, no answer      (id, 0)

A partition whose offset moved must be sent again, or the broker returns the same records again.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import NamedTuple

_ID_NOT_FOUND = 70
_LAST_EPOCH = 2**31 - 1


class Slot(NamedTuple):
    """A partition as a session knows it: by topic id, for a topic made again is another one."""

    topic_id: uuid.UUID
    partition: int


class Want(NamedTuple):
    """What is asked of a partition. A change of any of it has to be told."""

    offset: int
    leader_epoch: int
    max_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRequest:
    session_id: int
    epoch: int
    send: Mapping[Slot, Want]
    forget: tuple[Slot, ...]


class FetchSession:
    """One session with one broker. At most one request of it is in flight."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._told: dict[Slot, Want] = {}

    @property
    def is_incremental(self) -> bool:
        return self._epoch > 0

    def request(self, wanted: Mapping[Slot, Want]) -> SessionRequest:
        if not self.is_incremental:
            self._told = dict(wanted)
            return SessionRequest(self._id, 0, wanted, ())
        send = {slot: want for slot, want in wanted.items() if self._told.get(slot) != want}
        forget = tuple(slot for slot in self._told if slot not in wanted)
        self._told = dict(wanted)
        return SessionRequest(self._id, self._epoch, send, forget)

    def answered(self, error_code: int, session_id: int) -> None:
        if error_code == _ID_NOT_FOUND:
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

    def broken(self) -> None:
        """No answer came, or none that can be used."""
        self._epoch = 0

    def farewell(self) -> SessionRequest | None:
        """The request that closes the session, if there is one to close."""
        return SessionRequest(self._id, -1, {}, ()) if self._id else None
