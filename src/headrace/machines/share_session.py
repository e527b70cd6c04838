"""The session of a share group's member with one broker: what the broker knows, and the count of requests (KIP-932).

    epoch    what it means
    0        open a session (in place of one that may be there); no acknowledgements with it
    n        the n-th request of the session: 1, 2, 3, … and after 2^31-1 comes 1
    -1       close it, with last acknowledgements

    answer                                                  next request
    ok, or an error that is not about the session           n + 1: the broker has counted it
    SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED, INVALID_REQUEST            0: what was in the request was not looked at
    no answer                                               0: with the connection go the session and its locks

- ShareFetch and ShareAcknowledge count together. A session belongs to the connection that opened it.
- A partition is named once, when it is added, and once more when it is forgotten. To acknowledge in a ShareFetch adds
  it, too; to acknowledge in a ShareAcknowledge does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from kio.schema.errors import ErrorCode

from .session import Slot

_OPEN = 0
_CLOSE = -1
_LAST_EPOCH = 2**31 - 1

# The request was refused as a whole, before any of it was carried out. INVALID_REQUEST is among them because some of
# its causes are found before the request is counted, and some after: to open the session again is right for both.
REFUSED = {
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
    ErrorCode.share_session_limit_reached,
    ErrorCode.invalid_request,
}


@dataclasses.dataclass(frozen=True, slots=True)
class SessionFetch:
    """What a ShareFetch says of the session."""

    epoch: int
    add: frozenset[Slot]
    forget: frozenset[Slot]


class ShareSession:
    """At most one request is in flight."""

    def __init__(self) -> None:
        self._epoch = _OPEN
        self._told: frozenset[Slot] = frozenset()

    @property
    def is_open(self) -> bool:
        return self._epoch != _OPEN

    def fetch(self, wanted: Collection[Slot]) -> SessionFetch:
        """Exactly these partitions are to be in the session."""
        now = frozenset(wanted)
        before = self._told if self.is_open else frozenset()
        self._told = now
        return SessionFetch(self._epoch, now - before, before - now)

    def acknowledge(self) -> int:
        """The epoch of a ShareAcknowledge."""
        assert self.is_open, "a session is opened by a ShareFetch"
        return self._epoch

    def farewell(self) -> int | None:
        """The epoch of the request that closes the session, if there is one."""
        return _CLOSE if self.is_open else None

    def answered(self, code: int) -> None:
        if code in REFUSED:
            self.broken()
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def broken(self) -> None:
        """No answer came, or the session is not there any more."""
        self._epoch = _OPEN
        self._told = frozenset()
