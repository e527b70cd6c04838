"""What a group has committed of a partition, as a position starts from it.

    offset         the committed offset: where this group's newest owner was
    done           the completed offsets: all below `offset`, except for ranges that are still open below it, and those
                   completed beyond it (commit.mode=done)
    leader_epoch   the epoch of the log that the commit speaks of, if it says so

Who wrote the commit, and in how many logs, does not matter here.
"""

from __future__ import annotations

import dataclasses

from .offset_set import OffsetSet


@dataclasses.dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    done: OffsetSet
    leader_epoch: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the offset alone says everything."""
        return self.done == OffsetSet(self.offset)

    @property
    def end(self) -> int:
        """Nothing from this offset on is completed."""
        return max(self.offset, self.done.frontier)

    def below(self, end: int) -> CommittedOffset:
        """The part that is still valid when the log was truncated at `end`."""
        return dataclasses.replace(self, offset=min(self.offset, end), done=self.done & OffsetSet(end))
