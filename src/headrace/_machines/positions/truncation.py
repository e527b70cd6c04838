"""Truncated logs (KIP-320): an unclean leader election can remove records that were read.

where the leader says that the position's epoch ended         policy     verdict
at or behind all that was fetched                             any        VALID
at or behind the position, before what was fetched ahead      any        DROP_AHEAD: nobody has seen those records
before the position                                           a policy   GO_BACK to that end
nowhere: the epoch is unknown                                 a policy   RESET
before the position, or nowhere                               none       RAISE LogTruncationError
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from ...errors import LogTruncationError
from ...types import TopicPartition


class EpochEnd(NamedTuple):
    """The last epoch that is not above the asked one, and where it ends in the leader's log (-1: unknown)."""

    leader_epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        return self.leader_epoch >= 0 and self.end_offset >= 0


class Verdict(enum.Enum):
    VALID = "valid"
    DROP_AHEAD = "drop ahead"
    GO_BACK = "go back"
    RESET = "reset"
    RAISE = "raise"


def judge(end: EpochEnd, position: int, fetched: int, *, may_reset: bool) -> Verdict:
    """The table above."""
    if end.is_known and end.end_offset >= fetched:
        return Verdict.VALID
    if end.is_known and end.end_offset >= position:
        return Verdict.DROP_AHEAD
    if not may_reset:
        return Verdict.RAISE
    return Verdict.GO_BACK if end.is_known else Verdict.RESET


def truncation_error(tp: TopicPartition, position: int, end: EpochEnd) -> LogTruncationError:
    text = (
        f"the log of {tp} was truncated below the position {position}"
        f"{f' to {end.end_offset}' if end.is_known else ''} and auto.offset.reset is none: seek() to the offset to "
        f"resume at"
    )
    return LogTruncationError(text, {tp: end.end_offset if end.is_known else None})
