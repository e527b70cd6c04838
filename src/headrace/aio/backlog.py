"""KIP-333: the lane beside the live one, in which is worked off what that has skipped.

It is a lane as the other: partitions with buffers of their own, and a fetcher of its own that is started when there is
something to fetch and then stays, on standby. What it has to read of a partition, and what is committed of it, is
decided by `machines/lanes.py`.

A partition is here from when its token is committed until it is given up, sought or read to the end, and that is
committed. All of it is behind the intake's lock: what does not take it is called with it held.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from ..config import ConsumerConfig
from ..machines.assignment import Assignment, TakenFrom
from ..machines.cluster import Cluster
from ..machines.lanes import Lanes
from ..machines.partition import Chunk, PartitionState, Position
from ..offsets import OffsetSet, Range
from ..types import TopicPartition, Watermarks
from .doorbell import Doorbell
from .lane import Lane

log = logging.getLogger(__name__)

_TELL_EVERY = 10.0  # seconds


class LostRange(NamedTuple):
    """Offsets that will not be read: retention has deleted their records, or a reset has passed them over."""

    partition: TopicPartition
    start: int
    end: int


class Backlog(Lane):
    """The lane above. The engine sets `get_ready`, for partitions that are about to come, and `revive`; both are called
    on the loop."""

    def __init__(
        self, config: ConsumerConfig, lock: threading.Lock, cluster: Cluster, doorbell: Doorbell, budget: int
    ) -> None:
        super().__init__(config, lock, cluster, doorbell, name="backlog", budget=budget, checks_epochs=False)
        self.lanes: dict[TopicPartition, Lanes] = {}
        self.lost: collections.deque[LostRange] = collections.deque()  # not told to the user yet
        self.lost_count = 0
        self.get_ready: Callable[[Collection[TopicPartition]], None] = lambda partitions: None
        self.revive: Callable[[BaseException], None] | None = None
        self._share = config.parallel_rebalance_backlog_share
        self._credit = 0.0  # what of its share the lane has not had yet, below one record
        self._since = 0.0  # when it got its last work, how much there was then, and what was told of it
        self._size = 0
        self._told = 0.0

    def crashed(self, error: BaseException) -> None:
        """The live lane goes on. This one resumes from what it has committed."""
        if self.revive is not None:
            self.revive(error)

    # -- work that comes and goes ----------------------------------------------------------------------------------

    def open(self, live: PartitionState, lanes: Lanes) -> None:
        """The partition's token is committed."""
        tp = live.tp
        self.lanes[tp] = lanes
        state = self._read(tp)
        state.paused, state.withheld = live.paused, live.withheld
        self._since = self._told = time.monotonic()
        self._size = self.still_open()
        log.info("%s: live from %d on, %s beside it", tp, lanes.live_start, _shown(lanes.open))

    def _read(self, tp: TopicPartition) -> PartitionState:
        """Reads what is not committed of the partition's ranges, from its beginning."""
        self.assignment.assign([each.tp for each in self.assignment if each.tp != tp])
        self.assignment.assign([*self.assignment.partitions, tp])
        state, lanes = self.assignment.state(tp), self.lanes[tp]
        still = lanes.within | lanes.progress
        state.seek(Position(still.low))
        lanes.goes_back(still.low)
        state.known, state.stop = still, lanes.stop
        self.assignment.follow(self.cluster)
        return state

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """All others were given up."""
        if any(tp not in partitions for tp in self.lanes):
            self.drop([tp for tp in self.lanes if tp not in partitions])

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.lanes.pop(tp, None)
        self.assignment.assign([state.tp for state in self.assignment if state.tp in self.lanes])

    def cut(self, tp: TopicPartition, offset: int) -> None:
        """The live lane goes on there and leaves to this one what is before."""
        lanes = self.lanes.get(tp)
        if lanes is None:
            return
        is_mine = offset < lanes.stop
        lanes.cut(offset)
        if is_mine:
            log.info("%s: the live lane went back to %d, and takes over the backlog from there", tp, offset)
            self._resume(tp)

    def resume_all(self) -> None:
        """From what is committed."""
        for state in list(self.assignment):
            paused, withheld = state.paused, state.withheld
            again = self._read(state.tp)
            again.paused, again.withheld = paused, withheld

    def rewind(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        """Reads again what is not done of the ranges. Returns what is done for the live lane."""
        lanes, state = self.lanes.get(tp), self.assignment.get(tp)
        if lanes is None:
            return done
        if state is not None:
            known = lanes.within | done
            state.seek(Position(min(known.low, lanes.stop)))
            lanes.goes_back(known.low)
            state.known = known
        return done | OffsetSet(lanes.live_start)

    def _resume(self, tp: TopicPartition) -> None:
        """From where it is, with ranges that have changed."""
        state = self.assignment.get(tp)
        if state is None:
            return
        lanes = self.lanes[tp]
        assert state.position is not None
        known, position = lanes.within, state.position.offset
        state.seek(Position(known.next_open(position)))
        state.known, state.stop = known, lanes.stop

    def committed(self, partitions: Iterable[TopicPartition]) -> None:
        """The second log has acknowledged progress. What is done with is read no more."""
        closed = {tp for tp in partitions if tp in self.lanes and self.lanes[tp].is_closed}
        if closed:
            log.info("the backlog of %s is done", ", ".join(map(str, sorted(closed))))
            self.assignment.assign([state.tp for state in self.assignment if state.tp not in closed])

    # -- polls -----------------------------------------------------------------------------------------------------

    def take(
        self, limit: int, live: Assignment, live_from: list[TakenFrom], backlog_from: list[TakenFrom]
    ) -> list[Chunk]:
        """The records of one poll of both lanes: live ones first, but not all of them if that left no share here."""
        if not len(self.assignment):
            return live.take(limit, live_from)
        if limit < 0:
            taken = live.take(limit, live_from) + self._take(limit, backlog_from)
        else:
            kept = self._reserve(limit)
            taken = live.take(limit - kept, live_from) if kept < limit else []
            left = limit - sum(map(len, taken))
            if left:
                taken += self._take(left, backlog_from)
        if self.assignment.out_of_range_offsets():
            self.wake_all()
        self._tell(live)
        return taken

    def _take(self, limit: int, taken_from: list[TakenFrom]) -> list[Chunk]:
        taken = self.assignment.take(limit, taken_from)
        for chunk in taken:
            last = chunk[len(chunk) - 1]
            self.lanes[TopicPartition(last.topic, last.partition)].handed_out(last.offset + 1)
        return taken

    def undo(self, taken_from: list[TakenFrom]) -> None:
        """As if they had not been taken."""
        self.assignment.undo(taken_from)
        for each in taken_from:
            # Where the lane did not go back, what it has handed out stays noted: else it would pass for a gap.
            if each.is_valid(self.assignment.get(each.state.tp)) and each.position is not None:
                self.lanes[each.state.tp].goes_back(each.position.offset)

    def _reserve(self, limit: int) -> int:
        self._credit += limit * self._share
        kept = min(int(self._credit), limit, self.assignment.available)
        self._credit = (self._credit - kept) % 1.0  # a share for which there was nothing is not owed later
        return kept

    # -- what the log has lost ---------------------------------------------------------------------------------------

    def log_begins(self, tp: TopicPartition, offset: int) -> None:
        """Retention has deleted what is before."""
        state, lanes = self.assignment.get(tp), self.lanes.get(tp)
        if state is None or lanes is None or state.position is None:
            return
        self._lose(tp, lanes.log_begins(offset, state.position.offset))
        state.seek(Position(lanes.within.next_open(max(offset, state.position.offset))))
        state.known, state.stop = lanes.within, lanes.stop

    def log_ends(self, tp: TopicPartition, offset: int) -> None:
        """What was from there on was cut off by an unclean election. Goes on there, should something come."""
        state, lanes = self.assignment.get(tp), self.lanes.get(tp)
        if state is None or lanes is None or state.position is None:
            return
        self._lose(tp, lanes.log_ends(state.position.offset))
        state.seek(Position(offset))
        lanes.goes_back(offset)
        state.known, state.stop = lanes.within, lanes.stop

    def _lose(self, tp: TopicPartition, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            log.warning("%s: [%d, %d) of the backlog is not in the log any more and is passed over", tp, start, end)
            self.lost.append(LostRange(tp, start, end))
            self.lost_count += end - start

    # -- figures -----------------------------------------------------------------------------------------------------

    def position(self, tp: TopicPartition) -> int:
        """Everything of the partition's ranges that is before it was handed out."""
        state = self.assignment.get(tp)
        if state is None or state.position is None:
            return self.lanes[tp].stop
        return state.position.offset

    def done(self, tp: TopicPartition, done: OffsetSet) -> OffsetSet:
        """`done`, and what this lane is past that has no records."""
        return self.lanes[tp].without_records(done, self.position(tp))

    def handed_out(self, tp: TopicPartition, live: int) -> Watermarks | None:
        """From where to where both lanes have read; the live one is at `live`."""
        lanes = self.lanes[tp]
        spans = [(lanes.first_open, min(self.position(tp), lanes.stop)), (lanes.live_start, live)]
        read = [span for span in spans if span[0] < span[1]]
        return Watermarks(min(read)[0], max(end for _, end in read)) if read else None

    def still_open(self) -> int:
        """Offsets that are yet to be handed out."""
        return sum(self.lanes[state.tp].still_open(self.position(state.tp)) for state in self.assignment)

    def expected_seconds(self) -> float | None:
        """Until all is handed out, at the pace so far; None if that is not known yet."""
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

    def _tell(self, live: Assignment) -> None:
        now = time.monotonic()
        if now < self._told + _TELL_EVERY and self._size:
            return
        self._told = now
        left = self.still_open()
        if left:
            expected = self.expected_seconds()
            end = "" if expected is None else f", done in about {expected:.0f} s"
            lag = sum(state.lag or 0 for state in live if state.tp in self.lanes)
            log.info("backlog: %d of %d offsets are open%s; the live lane is %d behind", left, self._size, end, lag)


def _shown(ranges: Collection[Range]) -> str:
    count = sum(end - start for start, end in ranges)
    first = ", ".join(f"[{start}, {end})" for start, end in list(ranges)[:3])
    return f"{count} offsets of backlog in {first}{' …' if len(ranges) > 3 else ''}"
