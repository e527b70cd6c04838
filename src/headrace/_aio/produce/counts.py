"""What a producer has sent and delivered since it was created: its sender ends earlier, with close()."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ..._record_batch import DirectSender


class SendFigures(NamedTuple):
    records_delivered: int
    requests: int
    retries: int
    bytes_sent: int


class SendCounts:
    """Changed on the producer's thread, read by any. `_lock` makes the end of a direct sender, which has counted by
    itself, one step for the readers: no figure ever decreases."""

    def __init__(self) -> None:
        self.records_delivered = 0
        self.requests = 0
        self.retries = 0
        self.bytes_sent = 0
        self._lock = threading.Lock()
        self._direct: DirectSender | None = None

    def begin_direct(self, sender: DirectSender) -> None:
        self._direct = sender

    def end_direct(self) -> None:
        with self._lock:
            direct, self._direct = self._direct, None
            if direct is not None:
                self.records_delivered += direct.records_delivered
                self.requests += direct.requests
                self.bytes_sent += direct.bytes_sent

    def read(self) -> SendFigures:
        with self._lock:
            own = SendFigures(self.records_delivered, self.requests, self.retries, self.bytes_sent)
            direct = self._direct
            if direct is None:
                return own
            return SendFigures(
                own.records_delivered + direct.records_delivered,
                own.requests + direct.requests,
                own.retries,
                own.bytes_sent + direct.bytes_sent,
            )
