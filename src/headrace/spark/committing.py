"""`commitOffsets=true`: what a query has done is committed to a group, so that tools see its lag.

The checkpoint is what a query goes on from; this is for those who look on. A commit that fails is a warning, and is
tried again, with what is done by then. While a backlog is open (KIP-333) the lowest open offset is committed, and what
is done beyond it is noted beside it, as in `offsets.py`.

What does not change is committed again once a day: brokers forget the offsets of a group that nobody has committed to
for offsets.retention.minutes (seven days).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from ..errors import CommitFailedError, HeadraceError
from ..sync import Consumer
from ..types import OffsetAndMetadata, TopicPartition
from .checkpoint import Done
from .consumer_settings import idle_consumer

log = logging.getLogger(__name__)

Commits = dict[TopicPartition, OffsetAndMetadata]

_IN_TIME = 1.0  # how long a batch waits for a commit that is not known to fail, and how long the end of the query
_TIMEOUT = 10.0
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_AGAIN = 86_400.0


def commits_of(done: Done) -> Commits:
    return {tp: OffsetAndMetadata(each.low, each.to_text()) for tp, each in done.items()}


class GroupCommits:
    """Commits from a thread of its own, which also owns the consumer. The thread of Spark's calls offers and closes;
    the two meet in what is behind `_changed`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        connect: Callable[[Mapping[str, str]], Consumer] = idle_consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._all_committed_at = clock()
        self._changed = threading.Condition()
        self._wanted: Commits = {}
        self._committed: Commits = {}
        self._fails = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="headrace-commits", daemon=True)
        self._thread.start()

    def offer(self, done: Done) -> None:
        """To be committed. Waits a little, so that it is seen when the query ends, unless commits fail at present."""
        wanted = commits_of(done)
        with self._changed:
            if self._clock() - self._all_committed_at >= _AGAIN:
                self._all_committed_at = self._clock()
                self._committed = {}
            elif wanted == self._wanted:
                return
            self._wanted = wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._fails or self._committed == wanted, _IN_TIME)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_IN_TIME + 1.0)

    def _run(self) -> None:
        consumer: Consumer | None = None
        failures = 0
        try:
            while (wanted := self._next()) is not None:
                try:
                    if consumer is None:
                        consumer = self._connect(self._settings)
                    new = {tp: each for tp, each in wanted.items() if self._committed.get(tp) != each}
                    self._commit(consumer, new)
                except HeadraceError as error:
                    pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                    failures += 1
                    log.warning("the offsets were not committed to the group, again in %g s: %s", pause, error)
                    if not self._rest(pause):
                        return
                else:
                    failures = 0
                    with self._changed:
                        self._committed, self._fails = wanted, False
                        self._changed.notify_all()
        finally:
            if consumer is not None:
                consumer.close()

    def _commit(self, consumer: Consumer, offsets: Commits) -> None:
        try:
            consumer.commit(offsets, timeout=_IN_TIME if self._closing else _TIMEOUT)
        except CommitFailedError as error:
            if not error.partitions:
                raise
            log.warning("offsets of deleted topics are not committed to the group: %s", error)

    def _next(self) -> Commits | None:
        """What is to be committed now; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._wanted != self._committed)
            return None if self._wanted == self._committed else self._wanted

    def _rest(self, pause: float) -> bool:
        """False if it is over meanwhile."""
        end = time.monotonic() + pause
        with self._changed:
            self._fails = True
            self._changed.notify_all()
            while not self._closing and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._closing
