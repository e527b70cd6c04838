"""What needs attention, and why: the order of the groups on the page. Nothing here does I/O.

3 problem   records cannot be read, or were lost to a wrong offset: no leader, offsets beyond the end
2 warning   it will not get better by itself: the lag grows, nobody reads, records were deleted unread
1 notice    it is temporary: a rebalance, a backlog, records that wait for more than a minute
0 fine
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..monitor.model import SHARE, SPARK, GroupView, TopicView, Trend

PROBLEM, WARNING, NOTICE, FINE = 3, 2, 1, 0

_SETTLED = ("stable", "empty", "dead", "")
_FRESH = 5.0  # seconds: a group whose oldest record is younger keeps up
_OLD = 60.0  # seconds that a record may wait before it is worth a notice
_SLOW = 1.0  # records per second: a lag that grows slower is not worth a warning yet

UNKNOWN, CAUGHT_UP, KEEPING_UP, CATCHING_UP = "unknown", "caught up", "keeping up", "catching up"
FALLING_BEHIND, WAITING = "falling behind", "waiting"
OUTLOOKS = (UNKNOWN, CAUGHT_UP, KEEPING_UP, CATCHING_UP, FALLING_BEHIND, WAITING)
"""waiting: records are there, and nobody reads them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    level: int
    text: str


def group_attention(group: GroupView, trend: Trend | None) -> list[Attention]:
    """The reasons, the most important first."""
    return sorted(_group_reasons(group, trend), key=lambda it: -it.level)


def _group_reasons(group: GroupView, trend: Trend | None) -> Iterator[Attention]:
    parts, lag = group.partitions, group.lag or 0
    if group.error:
        yield Attention(FINE if group.has_nothing else WARNING, group.error)
    if beyond := sum(it.is_beyond for it in parts):
        yield Attention(PROBLEM, f"{_partitions(beyond)} committed beyond the end of the log: was the topic recreated?")
    if leaderless := {it.tp: it for it in parts if it.is_leaderless}:
        yield Attention(PROBLEM, _leaderless(len(leaderless), next(iter(leaderless.values())).error))
    if unreadable := [it for it in parts if it.error and not it.is_leaderless]:
        yield Attention(WARNING, f"{unreadable[0].tp}: {unreadable[0].error}")
    if group.lost:
        yield Attention(WARNING, f"{group.lost:,} record{_s(group.lost)} deleted by retention before processing")
    is_settled = group.kind == SPARK or group.state.lower() in _SETTLED
    if not is_settled:
        yield Attention(NOTICE, group.state)
    has_members = bool(group.members)
    if lag and not has_members and group.kind != SPARK and group.are_members_known:
        is_written = trend is not None and trend.written > 0
        yield Attention(WARNING if is_written else NOTICE, "no members, and records are waiting")
    # A partition of a share group has no owner: all its members may read it.
    elif has_members and is_settled and group.kind != SHARE and (unowned := _unowned(group)):
        yield Attention(WARNING, f"{_partitions(unowned)} with records and no owner")
    if trend is not None and (has_members or group.kind == SPARK) and is_growing(group, trend):
        yield Attention(WARNING, f"falling behind by {trend.growth:,.0f} records/s")
    elif lag and (group.backlog or (group.seconds or 0) > _OLD):
        yield Attention(NOTICE, "working off a backlog" if group.backlog else "records wait for more than a minute")


def _unowned(group: GroupView) -> int:
    return len({it.tp for it in group.partitions if it.lag and it.owner is None})


def is_fresh(group: GroupView) -> bool:
    """Whether the group reads records soon after they were written: its lag is what the next polls return."""
    return not group.lag or (_is_read(group) and group.seconds is not None and group.seconds < _FRESH)


def is_growing(group: GroupView, trend: Trend | None) -> bool:
    """Whether the lag grows, and is more than what a poll has not returned yet."""
    return trend is not None and not is_fresh(group) and trend.growth > _SLOW


def outlook(group: GroupView, trend: Trend | None) -> str:
    """Where the lag goes, in one word of `OUTLOOKS`."""
    if group.unread or group.lag is None or not group.are_members_known:
        return UNKNOWN
    if not group.lag:
        return CAUGHT_UP
    if not _is_read(group):
        return WAITING
    if is_fresh(group):
        return KEEPING_UP
    if trend is None or trend.is_partial:
        return UNKNOWN
    if is_growing(group, trend):
        return FALLING_BEHIND
    if trend.caught_up is not None:
        return CATCHING_UP
    # The lag is flat. Somebody reads as much as is written, or nothing has been written or read for a while.
    return KEEPING_UP if trend.read > 0 or (group.seconds is not None and group.seconds < _OLD) else WAITING


def _is_read(group: GroupView) -> bool:
    return bool(group.members) or group.kind == SPARK


def topic_attention(topic: TopicView) -> list[Attention]:
    return sorted(_topic_reasons(topic), key=lambda it: -it.level)


def _topic_reasons(topic: TopicView) -> Iterator[Attention]:
    if topic.error:
        yield Attention(WARNING, topic.error)
    if leaderless := [it for it in topic.partitions if it.is_leaderless]:
        yield Attention(PROBLEM, _leaderless(len(leaderless), leaderless[0].error))
    if behind := sum(it.is_under_replicated for it in topic.partitions):
        yield Attention(NOTICE, f"{_partitions(behind)} under-replicated")
    if unreadable := [it for it in topic.partitions if it.error and not it.is_leaderless]:
        yield Attention(WARNING, f"partition {unreadable[0].partition}: {unreadable[0].error}")


def _leaderless(count: int, error: str | None) -> str:
    """With the broker that is missing, if it is known."""
    cause = (error or "").partition(": ")[2]
    return f"{_partitions(count)} without a leader" + (f": {cause}" if cause else "")


def _partitions(count: int) -> str:
    return f"{count:,} partition{_s(count)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
