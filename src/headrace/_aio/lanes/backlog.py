"""KIP-333: the lane beside the live one. It reads the ranges that the live lane has skipped.

Like the live lane it has partitions with buffers of their own, and a fetcher of its own, which is started with the
first backlog and then stays on standby. `_machines/lanes/lanes.py` decides what it reads of a partition, and what is
committed of that.

A partition is here from when its token is committed until it is given up, sought, or read to the end and committed. All
of it is behind the lock of the buffer: a method that does not take the lock is called with it held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..._machines.commit.offset_set import OffsetSet, Range
from ..._machines.fetch.assignment import Assignment, TakenFrom
from ..._machines.fetch.partition import Chunk, PartitionState, Position
from ..._machines.lanes.lanes import BACKLOG, Lanes
from ..._machines.positions.positions import LostRange
from ...config.consumer import ConsumerConfig
from ...types import TopicPartition, Watermarks
from ..fetch.partitions import FetchedPartitions

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # seconds


class Backlog(FetchedPartitions):
    """The lane above. Its task sets `get_ready`, for partitions that are about to come, and `restart`; both are called
    on the loop. `on_lost` is called with ranges that the log does not have any more."""

    def __init__(
        self, config: ConsumerConfig, live: FetchedPartitions, budget: int, on_lost: Callable[[LostRange], None]
    ) -> None:
        super().__init__(
            config, live.lock, live.cluster, live.poll_signal, lane=BACKLOG, budget=budget, checks_epochs=False
        )
        self.lanes: dict[TopicPartition, Lanes] = {}
        self.lost_count = 0
        self.get_ready: Callable[[Collection[TopicPartition]], None] = lambda partitions: None
        self.restart: Callable[[BaseException], None] | None = None
        self._on_lost = on_lost
        self._since = 0.0  # when it got its last work, how much there was then, and when the log last said so
        self._size = 0
        self._logged = 0.0

    def crashed(self, error: BaseException) -> None:
        """The live lane is not affected. This one resumes from its last commit."""
        if self.restart is not None:
            self.restart(error)

    # -- partitions --------------------------------------------------------------------------------------------------

    def open(self, live: PartitionState, lanes: Lanes) -> None:
        """The partition's token is committed."""
        tp = live.tp
        self.lanes[tp] = lanes
        state = self._read(tp)
        state.paused, state.withheld = live.paused, live.withheld
        self._since = self._logged = time.monotonic()
        self._size = self.still_open()
        log.info(
            "%s: the live lane starts at offset %d; the backlog lane has %s", tp, lanes.live_start, _shown(lanes.open)
        )

    def _read(self, tp: TopicPartition) -> PartitionState:
        """Reads the partition's ranges from the first offset that is not committed."""
        self.assignment.assign([each.tp for each in self.assignment if each.tp != tp])
        self.assignment.assign([*self.assignment.partitions, tp])
        state, lanes = self.assignment.state(tp), self.lanes[tp]
        still = lanes.within | lanes.progress
        _seek(state, lanes, still.low, still)
        lanes.goes_back(still.low)
        self.assignment.follow(self.cluster)
        return state

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """All other partitions were given up."""
        if any(tp not in partitions for tp in self.lanes):
            self.drop([tp for tp in self.lanes if tp not in partitions])

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.lanes.pop(tp, None)
        self.assignment.assign([state.tp for state in self.assignment if state.tp in self.lanes])

    def cut(self, tp: TopicPartition, offset: int) -> None:
        """The live lane resumes at `offset`, and leaves everything before that to this lane."""
        lanes = self.lanes.get(tp)
        if lanes is None:
            return
        is_shortened = offset < lanes.stop
        lanes.cut(offset)
        if is_shortened:
            log.info("%s: the live lane was reset to offset %d; the backlog lane ends there", tp, offset)
            self._resume(tp)

    def resume_all(self) -> None:
        """From the last commit."""
        for state in list(self.assignment):
            paused, withheld = state.paused, state.withheld
            again = self._read(state.tp)
            again.paused, again.withheld = paused, withheld

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        """Reads the offsets of the ranges again that are not done. Returns what the live lane need not read."""
        lanes, state = self.lanes.get(tp), self.assignment.get(tp)
        if lanes is None:
            return done
        if state is not None:
            still = lanes.within | done
            state.seek(Position(min(still.low, lanes.stop)))
            lanes.goes_back(still.low)
            state.already_done = still
        return done | OffsetSet(lanes.live_start)

    def _resume(self, tp: TopicPartition) -> None:
        """From its position, after its ranges have changed."""
        state = self.assignment.get(tp)
        if state is None:
            return
        lanes = self.lanes[tp]
        assert state.position is not None
        _seek(state, lanes, lanes.within.next_open(state.position.offset), lanes.within)

    def committed(self, partitions: Iterable[TopicPartition]) -> None:
        """The second log has acknowledged progress. Partitions without an open range are no longer fetched."""
        closed = {tp for tp in partitions if tp in self.lanes and self.lanes[tp].is_closed}
        if closed:
            log.info("the backlog of %s is complete", ", ".join(map(str, sorted(closed))))
            self.assignment.assign([state.tp for state in self.assignment if state.tp not in closed])

    # -- polls -----------------------------------------------------------------------------------------------------

    def take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        """Records of this lane."""
        taken = self.assignment.take(limit, taken_from)
        for chunk in taken:
            last = chunk[len(chunk) - 1]
            self.lanes[TopicPartition(last.topic, last.partition)].handed_out(last.offset + 1)
        return taken

    def undo(self, taken_from: list[TakenFrom]) -> None:
        """As if they had not been taken."""
        self.assignment.undo(taken_from)
        for each in taken_from:
            # Where the lane was not moved back, the offsets that it handed out stay noted: otherwise they would count
            # as a gap without records, and be committed.
            if each.is_valid(self.assignment.get(each.state.tp)) and each.position is not None:
                self.lanes[each.state.tp].goes_back(each.position.offset)

    # -- ranges that the log does not have any more ------------------------------------------------------------------

    def log_begins(self, tp: TopicPartition, offset: int) -> None:
        """Retention has deleted everything before `offset`."""
        state, lanes = self.assignment.get(tp), self.lanes.get(tp)
        if state is None or lanes is None or state.position is None:
            return
        self._lose(tp, lanes.log_begins(offset, state.position.offset))
        _seek(state, lanes, lanes.within.next_open(max(offset, state.position.offset)), lanes.within)

    def log_ends(self, tp: TopicPartition, offset: int) -> None:
        """An unclean election has truncated the log at `offset`. Resumes there, should new records come."""
        state, lanes = self.assignment.get(tp), self.lanes.get(tp)
        if state is None or lanes is None or state.position is None:
            return
        self._lose(tp, lanes.log_ends(state.position.offset))
        _seek(state, lanes, offset, lanes.within)
        lanes.goes_back(offset)

    def _lose(self, tp: TopicPartition, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            log.warning("%s: offsets [%d, %d) of the backlog are no longer in the log and are skipped", tp, start, end)
            self._on_lost(LostRange(tp, start, end))
            self.lost_count += end - start

    # -- progress ----------------------------------------------------------------------------------------------------

    def position(self, tp: TopicPartition) -> int:
        """Everything before it of the partition's ranges was handed out."""
        state = self.assignment.get(tp)
        if state is None or state.position is None:
            return self.lanes[tp].stop
        return state.position.offset

    def done(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        """`done`, and the offsets without records that this lane has passed."""
        return self.lanes[tp].without_records(done, self.position(tp))

    def handed_out(self, tp: TopicPartition, live: int) -> Watermarks | None:
        """From where to where both lanes have read. `live` is the position of the live lane."""
        lanes = self.lanes[tp]
        spans = [(lanes.first_open, min(self.position(tp), lanes.stop)), (lanes.live_start, live)]
        read = [span for span in spans if span[0] < span[1]]
        return Watermarks(min(read)[0], max(end for _, end in read)) if read else None

    def still_open(self) -> int:
        """How many offsets are yet to be handed out."""
        return sum(self.lanes[state.tp].still_open(self.position(state.tp)) for state in self.assignment)

    def expected_seconds(self) -> float | None:
        """Until everything is handed out, at the present rate; None if that is not known yet."""
        left = self.still_open()
        if not left:
            return 0.0
        done, seconds = self._size - left, time.monotonic() - self._since
        return left * seconds / done if done > 0 and seconds > 0 else None

    def describe(self) -> dict[str, Any]:
        """For metrics()."""
        expected = self.expected_seconds()
        return {
            "open": self.still_open(),
            "expected_seconds": None if expected is None else round(expected, 3),
            "lost": self.lost_count,
            "buffered_records": sum(state.available for state in self.assignment),
            "buffered_bytes": sum(state.retained for state in self.assignment),
            "partitions": {
                str(state.tp): {
                    "position": self.position(state.tp),
                    "open": self.lanes[state.tp].still_open(self.position(state.tp)),
                    "ranges": [list(span) for span in self.lanes[state.tp].open],
                }
                for state in self.assignment
            },
        }

    def log_progress(self, live: Assignment) -> None:
        now = time.monotonic()
        if now < self._logged + _LOG_EVERY and self._size:
            return
        self._logged = now
        left = self.still_open()
        if left:
            expected = self.expected_seconds()
            end = "" if expected is None else f"; complete in about {expected:.0f} s"
            lag = sum(state.lag or 0 for state in live if state.tp in self.lanes)
            log.info("backlog: %d of %d offsets are open%s; the lag of the live lane is %d", left, self._size, end, lag)


def _seek(state: PartitionState, lanes: Lanes, offset: int, already_done: OffsetSet) -> None:
    """Reads from the offset on what is not done, up to the end of the last range."""
    state.seek(Position(offset))
    state.already_done, state.stop = already_done, lanes.stop


def _shown(ranges: Collection[Range]) -> str:
    count = sum(end - start for start, end in ranges)
    first = ", ".join(f"[{start}, {end})" for start, end in list(ranges)[:3])
    return f"{count} offsets in {first}{' …' if len(ranges) > 3 else ''}"
