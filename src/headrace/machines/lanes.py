"""KIP-333: the two lanes of one partition, and what each of them commits.

    offset       70 . . . . . . . . 120 . . . . . 131
    first log                       the live lane's offset, and the token: [70, 120) is skipped
    second log          85          the backlog lane's offset, with the token's name
                 done   | open      done          open

    when the partition is given             live lane            backlog lane
    nothing committed                       the reset policy     none
    committed, less than min.lag behind     goes on there        what the commit has open below it, if anything
    committed at 70, the log's end is 120   at 120               [70, 120), and what was open below 70

- The lanes never overlap: the live lane starts where the last open range ends, or behind it.
- Both go upwards. So the second log needs one offset; what was done out of order (commit.mode=done) is noted beside it.
- A token is written once, with the live lane's start. From then on the first log repeats it with every commit, until
  the second one has acknowledged that nothing of it is open. Then commits are plain again.
- Each start makes a token of its own, of what is open by then, so a late commit of the owner before counts for nothing.
- Offsets that the backlog lane has passed without a record (control records, aborted or compacted ones) are done: there
  is nothing that a user could commit behind them.
- `farewell` is what an orderly end leaves in the first log: the lowest open offset, so that any other client goes on
  there and loses nothing.
"""

from __future__ import annotations

import dataclasses

from ..lane_marks import Mark, standing
from ..offsets import LAST_OFFSET, OffsetSet, Range


@dataclasses.dataclass(frozen=True, slots=True)
class Beginning:
    """Where a partition is read that has a commit."""

    live: int
    beyond: OffsetSet  # what the live lane need not read again: all below `live`, and more if it goes on there
    holes: tuple[Range, ...]  # for the backlog lane


def beginning(first: Mark, second: Mark | None, end: int, min_lag: int) -> Beginning:
    """`end` is the end of the log, as far as it may be read."""
    done = standing(first, second)
    live = first.offset
    if end - live >= min_lag:
        return Beginning(end, OffsetSet(end), tuple(done.open(0, end)))
    return Beginning(live, done | OffsetSet(live), tuple(done.open(0, live)))


class Lanes:
    """A partition with a backlog. Guarded by whoever owns it."""

    def __init__(self, token: str, start: Beginning, leader_epoch: int | None = None) -> None:
        """`leader_epoch` is that of the log in which the live lane starts there."""
        self.token = token
        self.live_start = start.live
        self.beyond = start.beyond
        self.within = OffsetSet(LAST_OFFSET, start.holes)  # done everywhere but in the holes
        self.first_open = start.holes[0][0]
        self.stop = start.holes[-1][1]
        self.known = start.beyond & self.within
        self.first = Mark(start.live, self.known, token, leader_epoch=leader_epoch)  # what the first log has
        self.progress = OffsetSet(self.first_open)  # what the second log has
        self.is_tidy = False  # what the second log had is deleted there
        self._log_start = 0
        self._handed_out: dict[int, int] = {}  # by the start of a range: where the last record handed out of it ends

    @property
    def open(self) -> list[Range]:
        """What the second log has not acknowledged yet."""
        return self._open(self.progress)

    @property
    def is_closed(self) -> bool:
        return not self.open

    def still_open(self, position: int) -> int:
        """How many offsets the backlog lane has before it."""
        return sum(end - start for start, end in self._open(OffsetSet(min(position, self.stop))))

    def _open(self, done: OffsetSet) -> list[Range]:
        return list((self.within | done | OffsetSet(self._log_start)).holes)

    # -- what the backlog lane has handed out ------------------------------------------------------------------------

    def handed_out(self, end: int) -> None:
        """Records of one range, of which the last is at `end` - 1."""
        for start, last in self.within.holes:
            if start < end <= last:
                self._handed_out[start] = max(end, self._handed_out.get(start, start))

    def goes_back(self, position: int) -> None:
        """The backlog lane resumes at `position`: it hands out again what lies behind that."""
        self._handed_out = {start: min(end, position) for start, end in self._handed_out.items() if start < position}

    def without_records(self, done: OffsetSet, position: int) -> OffsetSet:
        """`done`, and the end of each range, as far as the backlog lane is past it (its `position` is given), from the
        last record on that was handed out."""
        for start, last in self.within.holes:
            first, behind = self._handed_out.get(start, start), min(last, position)
            if first < behind:
                done = done.with_done(first, behind)
        return done

    # -- commits -------------------------------------------------------------------------------------------------

    def live_mark(self, done: OffsetSet, note: str = "", leader_epoch: int | None = None) -> Mark:
        """For the first log. `done` is the live lane's: all below its start counts as done there."""
        if self.is_closed:
            return Mark(done.low, done, "", note, leader_epoch)
        return Mark(done.low, done & self.within, self.token, note, leader_epoch)

    def backlog_mark(self, done: OffsetSet, note: str = "") -> Mark:
        """For the second log. `done` is the backlog lane's; beyond the last hole it means nothing."""
        kept = (done | OffsetSet(self._log_start)) & OffsetSet(self.stop)
        return Mark(kept.low, kept, self.token, note)

    def is_backlog(self, offset: int, position: int) -> bool:
        """Whether a commit of this offset speaks of the backlog. The end of a range is also where done or live offsets
        begin: it is the backlog's only when that lane (its position is given) has handed out all before it. If nothing
        is open any more, all commits are plain."""
        return not self.is_closed and any(
            start <= offset < end or (offset == end and position >= end) for start, end in self._open(OffsetSet(0))
        )

    def farewell(self, position: int = 0) -> Mark:
        """The first log's last commit, for whoever comes next: plain, at the lowest open offset. `position` is the
        backlog lane's."""
        progress = self.without_records(self.progress, position)
        done = standing(self.first, Mark(progress.low, progress, self.token))
        return Mark(done.low, done, "", self.first.note, self.first.leader_epoch)

    # -- what becomes of the log -----------------------------------------------------------------------------------

    def log_begins(self, offset: int, position: int) -> list[Range]:
        """Retention has deleted what is below the offset. What of it the backlog lane has not handed out is lost."""
        before = self._open(OffsetSet(position))
        self._log_start = max(self._log_start, offset)
        return [(start, min(end, offset)) for start, end in before if start < offset]

    def log_ends(self, position: int) -> list[Range]:
        """An unclean election has cut off the log before the backlog lane's position: what that has not handed out is
        lost. The ranges stay as they are: other records may come to lie there, and until the live lane goes back, too
        (`cut`), nobody else reads them."""
        return self._open(OffsetSet(position))

    def cut(self, offset: int) -> None:
        """The live lane goes on there, back from where it was. The backlog lane reads nothing from there on, and
        nothing from there on is done, whichever lane has read it."""
        left = OffsetSet(offset)
        self.live_start = min(self.live_start, offset)
        self.beyond &= left
        self.known &= left
        self.first = self.first.below(offset)
        if offset < self.stop:
            self.within = self.within.with_done(offset, LAST_OFFSET)
            self.stop = max((end for _, end in self.within.holes), default=0)
