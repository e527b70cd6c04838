"""The events that `on_event` receives: problems of a consumer that its program should know of, and their ends.

`str(event)` is the text that the consumer logs, at WARNING if `is_warning`, else at INFO. Times are in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from .types import TopicPartition

_SHOWN = 10  # topics and partitions in the text of an event


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What all events have."""

    is_warning: ClassVar[bool] = True

    group_id: str


# -- membership: of consumers and share consumers ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class HeartbeatsFailing(Event):
    """The coordinator has accepted no heartbeat for `seconds`. Repeated every minute while this lasts."""

    seconds: float
    error: str | None
    """Of the last heartbeat that failed. None if there is no response yet."""

    def __str__(self) -> str:
        reason = self.error or "the coordinator does not respond"
        return f"group {self.group_id}: heartbeats have failed for {self.seconds:.1f} s: {reason}"


@dataclasses.dataclass(frozen=True, slots=True)
class HeartbeatsRecovered(Event):
    """The coordinator accepts heartbeats again, after HeartbeatsFailing."""

    is_warning: ClassVar[bool] = False

    seconds: float
    """How long heartbeats failed."""

    def __str__(self) -> str:
        return f"group {self.group_id}: heartbeats are accepted again, after {self.seconds:.1f} s"


@dataclasses.dataclass(frozen=True, slots=True)
class MembershipAtRisk(Event):
    """The member is about to lose its membership, and with it its partitions.

    cause="poll": three quarters of max.poll.interval.ms have passed since the last poll(). cause="heartbeats": three
    quarters of the session timeout have passed without an accepted heartbeat.
    """

    cause: Literal["heartbeats", "poll"]
    seconds_left: float | None
    """None if unknown: with group.protocol=consumer and in share groups, only the coordinator knows the session
    timeout. The event then means that no heartbeat was accepted for three heartbeat intervals and for three seconds."""

    def __str__(self) -> str:
        if self.cause == "poll":
            return (
                f"group {self.group_id}: poll() was not called for most of max.poll.interval.ms. The member leaves the "
                f"group in {self.seconds_left:.1f} s unless poll() is called. Lower max.poll.records, or raise "
                "max.poll.interval.ms"
            )
        left = "soon" if self.seconds_left is None else f"in {self.seconds_left:.1f} s"
        return (
            f"group {self.group_id}: the coordinator removes this member {left} (session timeout) unless it receives a "
            "heartbeat"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MembershipSafe(Event):
    """The membership is no longer at risk, after MembershipAtRisk: poll() was called, or a heartbeat was accepted."""

    is_warning: ClassVar[bool] = False

    cause: Literal["heartbeats", "poll"]

    def __str__(self) -> str:
        what = "poll() was called" if self.cause == "poll" else "the coordinator accepted a heartbeat"
        return f"group {self.group_id}: the membership is safe again: {what} in time"


@dataclasses.dataclass(frozen=True, slots=True)
class MembershipLost(Event):
    """The member has lost its membership. The next poll() reports its partitions as lost, and rejoins if it can.

    cause="poll": poll() was not called for max.poll.interval.ms, and the member left. cause="coordinator": the
    coordinator has removed or rejected the member.
    """

    cause: Literal["coordinator", "poll"]
    error: str | None
    """The error that ended the membership, if the member cannot rejoin."""

    def __str__(self) -> str:
        if self.cause == "poll":
            return f"group {self.group_id}: left, because poll() was not called for max.poll.interval.ms"
        return (
            f"group {self.group_id}: the coordinator has removed this member{f': {self.error}' if self.error else ''}"
        )


# -- topics: of consumers, with or without a group, and share consumers -----------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class TopicsMissing(Event):
    """What the consumer reads has not existed for five seconds. Repeated every minute while this lasts.

    `group_id` is empty without a group. A topic that is created later is read as soon as brokers know it.
    """

    seconds: float
    """Since the first of them was missing."""
    topics: tuple[str, ...] = ()
    """Topics that do not exist."""
    partitions: tuple[TopicPartition, ...] = ()
    """Assigned partitions that do not exist, although their topics do."""
    pattern: str | None = None
    """The subscribed pattern, if it matches no topic that this client may describe."""
    suggestions: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """For a missing topic an existing one with a similar name, if this client may describe one."""

    def __str__(self) -> str:
        found = [_not_existing(self.topics, self.partitions)] if self.topics or self.partitions else []
        if self.pattern is not None:
            found.append(f"no topic that this client may describe matches the pattern {self.pattern!r}")
        hint = "".join(f" {name}: did you mean {other}?" for name, other in self.suggestions.items())
        return f"{_of_group(self.group_id)}{', and '.join(found)} (for {self.seconds:.0f} s now; waiting for it).{hint}"


@dataclasses.dataclass(frozen=True, slots=True)
class TopicsFound(Event):
    """What TopicsMissing has reported exists now, and is read."""

    is_warning: ClassVar[bool] = False

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        found = [*self.topics, *map(str, self.partitions)]
        found += [] if self.pattern is None else [f"a topic that matches {self.pattern!r}"]
        return f"{_of_group(self.group_id)}{', '.join(found)} {'exist' if len(found) > 1 else 'exists'} now"


def _of_group(group_id: str) -> str:
    return f"group {group_id}: " if group_id else ""


def _not_existing(topics: tuple[str, ...], partitions: tuple[TopicPartition, ...]) -> str:
    found = [f"the topic{'s' * (len(topics) > 1)} {_listed(topics)}"] if topics else []
    if partitions:
        found.append(f"the partition{'s' * (len(partitions) > 1)} {_listed(partitions)}")
    return f"{' and '.join(found)} {'do' if len(topics) + len(partitions) > 1 else 'does'} not exist"


def _listed(things: tuple[object, ...]) -> str:
    shown = ", ".join(map(str, things[:_SHOWN]))
    return shown if len(things) <= _SHOWN else f"{shown} and {len(things) - _SHOWN} more"


# -- handlers of run() -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerStuck(Event):
    """A call of run()'s handler takes very long.

    state="running": three quarters of max.poll.interval.ms have passed; at its end, the call is abandoned.
    state="abandoned": the call has exceeded `timeout` or max.poll.interval.ms, and its result will be ignored. Repeated
    for each further `timeout`. state="cancelled": a coroutine has exceeded `timeout` and was cancelled.
    """

    partition: TopicPartition
    offset: int
    seconds: float
    """Since the call began."""
    state: Literal["abandoned", "cancelled", "running"]
    consequence: str
    """What happens to the record, as a sentence."""
    stack: str
    """Where the handler is, as the lines of a traceback; empty if it has just returned."""

    def __str__(self) -> str:
        verb = "was cancelled" if self.state == "cancelled" else "is still running"
        where = f" It is at:\n{self.stack}" if self.stack else ""
        return (
            f"{self.partition}, offset {self.offset}: the handler {verb} after {self.seconds:.1f} s. "
            f"{self.consequence}{where}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerReturned(Event):
    """A call that HandlerStuck has reported as running or abandoned has ended."""

    is_warning: ClassVar[bool] = False

    partition: TopicPartition
    offset: int
    seconds: float
    """Since the call began."""
    counts: bool
    """False if the call was abandoned, and its result is ignored."""

    def __str__(self) -> str:
        late = "" if self.counts else ", too late: its result is ignored"
        return f"{self.partition}, offset {self.offset}: the handler returned after {self.seconds:.1f} s{late}"
