"""`commitOffsets=true`: commits what a query has completed to a group, so that tools show its lag.

A query resumes from its checkpoint, not from these commits. A commit that fails is logged as a warning and retried,
with the offsets that are completed by then. While a backlog is open (KIP-333) the committed offset is the lowest open
one, and the commit metadata has what is done beyond it (`OffsetSet.to_text`).

Unchanged offsets are committed again once a day: brokers expire the offsets of a group without commits after
offsets.retention.minutes (seven days).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from ...errors import CommitFailedError, HeadraceError
from ...sync import Consumer
from ...types import OffsetAndMetadata, TopicPartition
from ..checkpoint import DoneOffsets
from ..offset_lookup import create_standalone_consumer

log = logging.getLogger(__name__)

Commits = dict[TopicPartition, OffsetAndMetadata]

_WAIT = 1.0  # how long a batch waits for a commit, unless commits fail at present; and the end of the query
_COMMIT_TIMEOUT = 10.0
_RETRY_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_RECOMMIT_INTERVAL = 86_400.0


def offsets_to_commit(done: DoneOffsets) -> Commits:
    return {tp: OffsetAndMetadata(each.low, each.to_text()) for tp, each in done.items()}


class QueryCommitter:
    """Commits from a thread of its own, `headrace-commits`, which also owns the consumer. The thread of Spark's calls
    requests commits and closes it. `_changed` guards what both access."""

    def __init__(
        self,
        settings: Mapping[str, str],
        create_consumer: Callable[[Mapping[str, str]], Consumer] = create_standalone_consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._create_consumer = create_consumer
        self._clock = clock
        self._all_committed_at = clock()
        self._changed = threading.Condition()
        self._wanted: Commits = {}
        self._committed: Commits = {}
        self._is_failing = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="headrace-commits", daemon=True)
        self._thread.start()

    def request_commit(self, done: DoneOffsets) -> None:
        """Waits briefly for the commit, so that it is visible when the query ends, unless commits fail at present."""
        wanted = offsets_to_commit(done)
        with self._changed:
            if self._clock() - self._all_committed_at >= _RECOMMIT_INTERVAL:
                self._all_committed_at = self._clock()
                self._committed = {}
            elif wanted == self._wanted:
                return
            self._wanted = wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_failing or self._committed == wanted, _WAIT)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_WAIT + 1.0)

    def _run(self) -> None:
        consumer: Consumer | None = None
        failures = 0
        try:
            while (wanted := self._next()) is not None:
                try:
                    if consumer is None:
                        consumer = self._create_consumer(self._settings)
                    new = {tp: each for tp, each in wanted.items() if self._committed.get(tp) != each}
                    self._commit(consumer, new)
                except HeadraceError as error:
                    interval = _RETRY_INTERVALS[min(failures, len(_RETRY_INTERVALS) - 1)]
                    failures += 1
                    group = self._settings.get("group.id")
                    log.warning("Cannot commit offsets to the group %r, retrying in %g s: %s", group, interval, error)
                    if not self._wait_before_retry(interval):
                        return
                else:
                    failures = 0
                    with self._changed:
                        self._committed, self._is_failing = wanted, False
                        self._changed.notify_all()
        finally:
            if consumer is not None:
                consumer.close()

    def _commit(self, consumer: Consumer, offsets: Commits) -> None:
        try:
            consumer.commit(offsets, timeout=_WAIT if self._closing else _COMMIT_TIMEOUT)
        except CommitFailedError as error:
            if not error.partitions:
                raise
            log.warning("The offsets of deleted topics are not committed to the group: %s", error)

    def _next(self) -> Commits | None:
        """Waits for offsets to commit; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._wanted != self._committed)
            return None if self._wanted == self._committed else self._wanted

    def _wait_before_retry(self, interval: float) -> bool:
        """False if it was closed meanwhile."""
        end = time.monotonic() + interval
        with self._changed:
            self._is_failing = True
            self._changed.notify_all()
            while not self._closing and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._closing
