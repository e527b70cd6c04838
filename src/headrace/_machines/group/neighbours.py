"""Members of one group in one process: which answers lead to hints for the others, and how soon these then send a
heartbeat.

A coordinator reports nothing to a member before its next heartbeat, which comes every three or five seconds by default.
If other members run in the same process, one of them usually knows sooner that the group changes: the one that joins or
leaves, and the first one whose heartbeat says so. The others then send their next heartbeat at once, instead of waiting
for their interval. A heartbeat that comes early is like any other, so a hint that is wrong, late or lost does no harm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from ..._protocol.codes import NONE
from ..._protocol.messages import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, SHARE_GROUP_HEARTBEAT
from .actions import Send

PATIENCE = 2.0  # seconds that a member that joins waits before it says for whom
_JOIN = 0
_SPACING = 0.1  # of the heartbeat interval
_SHORTEST_SPACING = 0.05  # seconds
_LONGEST_SPACING = 0.1


def hint_spacing(interval: float) -> float:
    """Seconds from one heartbeat to the next one that follows a hint. Hints in between are combined."""
    return max(_SHORTEST_SPACING, min(_LONGEST_SPACING, _SPACING * interval))


def heartbeat_after_hint(due: float, interval: float, now: float) -> float:
    """When to send the next heartbeat, which was due an interval after the last one."""
    return min(due, max(now, due - interval + hint_spacing(interval)))


@dataclasses.dataclass(frozen=True, slots=True)
class HeldUp:
    """The group waits for the next poll() of a member, to complete a rebalance."""

    member_id: str
    seconds: float
    """Since its last poll()."""


def waiting_for(group_id: str, others: Iterable[HeldUp], longest_absence: float) -> str | None:
    """What a member says that waits to get partitions, if others of its process keep it waiting."""
    idle = [each for each in others if each.seconds >= PATIENCE]
    if not idle:
        return None
    shown = ", ".join(f"{each.member_id} (last poll() {each.seconds:.0f} s ago)" for each in idle)
    return (
        f"group {group_id}: this consumer waits for others of the same process, which do not poll: {shown}. Close "
        f"them. The group waits for each for up to {longest_absence:.0f} s (max.poll.interval.ms). In a notebook, one "
        f"that was replaced lives on while something refers to it, such as the traceback of an interrupted cell"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """A change that other members learn from their next heartbeat. Equal news of several members are one change: in a
    classic group every member learns of a rebalance, and if each told all others, 50 members would wake 50 threads
    50 times."""

    what: str
    epoch: int
    member_id: str | None = None  # None: all members see this change


def news_in(request: Send, body: Any) -> News | None:
    """What this answer means for other members."""
    if request.api is HEARTBEAT:
        has_begun = body.error_code == ErrorCode.rebalance_in_progress
        return News("rebalance", request.fields["generation_id"]) if has_begun else None
    if request.api not in (CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT) or body.error_code != NONE:
        return None
    member_id = request.fields["member_id"]
    if request.fields["member_epoch"] == _JOIN:
        return News("joined", body.member_epoch, member_id)
    if request.fields.get("topic_partitions") is not None:  # somebody may have waited for what it has released
        return News("owned", body.member_epoch, member_id)
    # A member that waits for the partitions of others gets a new epoch, and no assignment yet.
    has_changed = body.assignment is not None or body.member_epoch != request.fields["member_epoch"]
    return News("target", body.member_epoch) if has_changed else None
