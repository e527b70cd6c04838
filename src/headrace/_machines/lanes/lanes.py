"""KIP-333: the two lanes of one partition, and what each of them commits.

    offset       70 . . . . . . . . 120 . . . . . 131
    first log                       the live lane's offset, and the token: [70, 120) is skipped
    second log          85          the backlog lane's offset, with the token's name
                 done   | open      done          open

    when the partition is assigned          live lane            backlog lane
    nothing is committed                    the reset policy     none
    committed, less than min.lag behind     resumes there        what the commit has open below it, if anything
    committed at 70, the log ends at 120    at 120               [70, 120), and what was open below 70

- The lanes never overlap: the live lane starts where the last open range ends, or behind it.
- Both go upwards. So the second log needs one offset; what was done out of order (commit.mode=done) is noted beside it.
- A token is written once, with the live lane's start. From then on the first log repeats it with every commit, until
  the second one has acknowledged that nothing of it is open. Then commits are plain again.
- Each start makes a token of its own, with what is open by then, so a late commit of the previous owner has no effect.
- Offsets that the backlog lane has passed without a record (control records, aborted or compacted ones) are done: there
  is no record behind them that a user could commit.
- `final_commit` is what an orderly end writes in the first log: the lowest open offset, so that any other client
  resumes there and loses nothing. It also replaces the token if the last commit was that of the backlog's end.
- Without its token, the second log has no meaning: nothing is written there any more, and what is there is deleted.
"""

from __future__ import annotations

import dataclasses

from ..commit.committed_offset import CommittedOffset
from ..commit.offset_set import LAST_OFFSET, OffsetSet, Range
from .commit_metadata import CommitMark, done_offsets

LIVE, BACKLOG = "live", "backlog"
"""`Record.lane` of the records of each lane."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaneStart:
    """Where a partition with a commit is read."""

    live: int
    beyond: OffsetSet  # what the live lane need not read again: all below `live`, and more if it resumes there
    holes: tuple[Range, ...]  # for the backlog lane


def lane_start(committed: CommittedOffset, end: int, min_lag: int) -> LaneStart:
    """`end` is the end of the log, as far as it may be read."""
    done, live = committed.done, committed.offset
    if end - live >= min_lag:
        return LaneStart(end, OffsetSet(end), tuple(done.open(0, end)))
    return LaneStart(live, done | OffsetSet(live), tuple(done.open(0, live)))


def lanes_for(committed: CommittedOffset, end: int, end_epoch: int, min_lag: int, token: str) -> Lanes | None:
    """The lanes of a partition whose commit leaves something open; None if one lane is enough. `end_epoch` is the
    leader epoch at the end of the log (-1: unknown)."""
    start = lane_start(committed, end, min_lag)
    if not start.holes:
        return None
    is_in_log = end_epoch >= 0 and start.live <= end
    return Lanes(token, start, end_epoch if is_in_log else committed.leader_epoch)


class Lanes:
    """A partition with a backlog. Its owner locks."""

    def __init__(self, token: str, start: LaneStart, leader_epoch: int | None = None) -> None:
        """`leader_epoch` is that of the log in which the live lane starts."""
        self.token = token
        self.live_start = start.live
        self.beyond = start.beyond
        self.within = OffsetSet(LAST_OFFSET, start.holes)  # done everywhere but in the holes
        self.first_open = start.holes[0][0]
        self.stop = start.holes[-1][1]
        self.already_done = start.beyond & self.within
        # What the first log has, and what the second one has.
        self.first = CommitMark(start.live, self.already_done, token, leader_epoch=leader_epoch)
        self.progress = OffsetSet(self.first_open)
        self._log_start = 0
        self._handed_out: dict[int, int] = {}  # by the start of a range: where the last record handed out of it ends

    @property
    def open(self) -> list[Range]:
        """The ranges that the second log has not acknowledged yet."""
        return self._open(self.progress)

    @property
    def is_closed(self) -> bool:
        return not self.open

    @property
    def has_token(self) -> bool:
        """Whether the first log has the token."""
        return bool(self.first.token)

    def still_open(self, position: int) -> int:
        """How many offsets the backlog lane has yet to read."""
        return sum(end - start for start, end in self._open(OffsetSet(min(position, self.stop))))

    def _open(self, done: OffsetSet) -> list[Range]:
        return list((self.within | done | OffsetSet(self._log_start)).holes)

    # -- records of the backlog lane that were handed out ------------------------------------------------------------

    def handed_out(self, end: int) -> None:
        """Records of one range, of which the last is at `end` - 1."""
        for start, last in self.within.holes:
            if start < end <= last:
                self._handed_out[start] = max(end, self._handed_out.get(start, start))

    def goes_back(self, position: int) -> None:
        """The backlog lane resumes at `position`, and hands out again what follows."""
        self._handed_out = {start: min(end, position) for start, end in self._handed_out.items() if start < position}

    def without_records(self, done: OffsetSet, position: int) -> OffsetSet:
        """`done`, and the offsets of each range that follow its last record that was handed out, as far as the backlog
        lane is past them (its `position` is given)."""
        for start, last in self.within.holes:
            first, behind = self._handed_out.get(start, start), min(last, position)
            if first < behind:
                done = done.with_done(first, behind)
        return done

    # -- commits -------------------------------------------------------------------------------------------------

    def live_mark(self, done: OffsetSet, note: str = "", leader_epoch: int | None = None) -> CommitMark:
        """For the first log. `done` is the live lane's: everything below its start counts as done there."""
        if self.is_closed:
            return CommitMark(done.low, done, "", note, leader_epoch)
        return CommitMark(done.low, done & self.within, self.token, note, leader_epoch)

    def backlog_mark(self, done: OffsetSet, note: str = "") -> CommitMark | None:
        """For the second log, unless it says that already. `done` is the backlog lane's; it has no meaning beyond the
        last hole."""
        kept = self._within_ranges(done)
        if kept == self.progress or not self.has_token:
            return None
        return CommitMark(kept.low, kept, self.token, note)

    def _within_ranges(self, done: OffsetSet) -> OffsetSet:
        return (done | OffsetSet(self._log_start)) & OffsetSet(self.stop)

    def is_backlog(self, offset: int, position: int) -> bool:
        """Whether a commit of this offset belongs to the backlog. The end of a range is also where done or live offsets
        begin: it is the backlog's only when that lane (its position is given) has handed out everything before it. If
        nothing is open any more, all commits are plain."""
        return not self.is_closed and any(
            start <= offset < end or (offset == end and position >= end) for start, end in self._open(OffsetSet(0))
        )

    def final_commit(self, position: int = 0) -> CommitMark:
        """The last commit in the first log, for the next owner: plain, at the lowest open offset. `position` is the
        backlog lane's."""
        progress = self._within_ranges(self.without_records(self.progress, position))
        done = done_offsets(self.first, CommitMark(progress.low, progress, self.token))
        return CommitMark(done.low, done, "", self.first.note, self.first.leader_epoch)

    # -- retention and truncation ----------------------------------------------------------------------------------

    def log_begins(self, offset: int, position: int) -> list[Range]:
        """Retention has deleted everything below `offset`. Returns the ranges of it that the backlog lane has not
        handed out: they are lost."""
        before = self._open(OffsetSet(position))
        self._log_start = max(self._log_start, offset)
        return [(start, min(end, offset)) for start, end in before if start < offset]

    def log_ends(self, position: int) -> list[Range]:
        """An unclean election has truncated the log before the backlog lane's position. Returns the ranges that it has
        not handed out: they are lost. They stay open: new records may be written there, and until the live lane goes
        back, too (`cut`), nobody else reads them."""
        return self._open(OffsetSet(position))

    def cut(self, offset: int) -> None:
        """The live lane resumes at `offset`, back from where it was. The backlog lane reads nothing from there on, and
        nothing from there on is done, whichever lane has read it."""
        left = OffsetSet(offset)
        self.live_start = min(self.live_start, offset)
        self.beyond &= left
        self.already_done &= left
        self.first = self.first.below(offset)
        if offset < self.stop:
            self.within = self.within.with_done(offset, LAST_OFFSET)
            self.stop = max((end for _, end in self.within.holes), default=0)
