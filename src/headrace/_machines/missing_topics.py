"""When to warn that what a consumer reads does not exist: a topic, an assigned partition, or all topics of a pattern.

    absent                                    event
    for less than PATIENCE                    none: topics are created, and brokers that restart do not know theirs yet
    for longer                                TopicsMissing, with everything that is absent for that long
    still, EVERY seconds after the last one   TopicsMissing
    not any more, after TopicsMissing         TopicsFound, unless the consumer does not read it any more

- A topic is absent if the latest answer about it says so. As long as no broker has answered, nothing is absent.
- Only the coordinator evaluates the pattern of a KIP-848 member, and tells nobody when it matches nothing. So such a
  pattern may be absent while the member owns nothing. The caller then compares the names of all topics, and calls
  `matches` if one does: other members may own its partitions. After that it is not asked again until the member has
  owned something.
- The owner's lock guards it. It is asked after every change, and at `next_look` at the latest.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Collection

from ..events import Event, TopicsFound, TopicsMissing
from ..types import TopicPartition
from .cluster import Cluster

PATIENCE = 5.0
EVERY = 60.0

# What RE2 knows and `re` does not, or reads differently.
_ONLY_RE2 = re.compile(r"\[\[:|\\[pPzCQ]")


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """`has_match`: it matches a topic, as far as this member knows. `is_remote`: the coordinator evaluates it."""

    text: str
    has_match: bool
    is_remote: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer reads: subscribed topics or a pattern, or assigned partitions."""

    topics: frozenset[str] = frozenset()
    pattern: Pattern | None = None
    partitions: frozenset[TopicPartition] = frozenset()


Thing = str | TopicPartition | tuple[str]  # a topic, a partition, or (a pattern,)


class MissingTopics:
    """Of one consumer, from when its tasks start. The Spark source, which is asked once in each trigger and raises an
    error for a missing topic anyway, has no patience."""

    def __init__(self, group_id: str | None, patience: float = PATIENCE) -> None:
        self._group_id = group_id or ""
        self._patience = patience
        self._since: dict[Thing, float] = {}
        self._reported: set[Thing] = set()
        self._reported_at = -math.inf
        self._matching: str | None = None  # the remote pattern that is known to match
        self.next_look = math.inf

    def look(self, wanted: Wanted, cluster: Cluster, now: float) -> list[Event]:
        """The events since the last look."""
        if wanted.pattern is None or wanted.pattern.has_match or wanted.pattern.text != self._matching:
            self._matching = None
        return self.look_at(_things(wanted), self._absent(wanted, cluster), now)

    def look_at(self, wanted: Collection[Thing], absent: set[Thing], now: float) -> list[Event]:
        """The same, of somebody who knows what is absent."""
        self._since = {thing: self._since.get(thing, now) for thing in absent}
        present = self._reported - absent
        self._reported &= absent
        found = present.intersection(wanted)
        late = {thing for thing, since in self._since.items() if now >= since + self._patience}
        events: list[Event] = [TopicsFound(self._group_id, *_sorted(found))] if found else []
        if late - self._reported or (late and now >= self._reported_at + EVERY):
            self._reported, self._reported_at = late, now
            seconds = now - min(self._since[thing] for thing in late)
            events.append(TopicsMissing(self._group_id, seconds, *_sorted(late)))
        due = [since + self._patience for thing, since in self._since.items() if thing not in self._reported]
        self.next_look = min([*due, *([self._reported_at + EVERY] if self._reported else [])], default=math.inf)
        return events

    def matches(self, pattern: str) -> None:
        """A topic matches this remote pattern."""
        self._matching = pattern
        self._since.pop((pattern,), None)
        self._reported.discard((pattern,))

    def describe(self) -> list[str]:
        """What was reported as missing, for metrics()."""
        return sorted(thing[0] if type(thing) is tuple else str(thing) for thing in self._reported)

    def _absent(self, wanted: Wanted, cluster: Cluster) -> set[Thing]:
        topics = wanted.topics.union(tp.topic for tp in wanted.partitions)
        absent: set[Thing] = {name for name in topics if cluster.is_unknown(name)}
        for tp in wanted.partitions:
            if tp.topic not in absent and tp.topic in cluster.topics and cluster.partition(tp) is None:
                absent.add(tp)
        pattern = wanted.pattern
        if pattern is not None and not pattern.has_match and pattern.text != self._matching:
            absent |= {(pattern.text,)} if pattern.is_remote or cluster.has_listed_all else set()
        return absent


def _things(wanted: Wanted) -> set[Thing]:
    names = wanted.topics.union(tp.topic for tp in wanted.partitions)
    return {*names, *wanted.partitions, *([] if wanted.pattern is None else [(wanted.pattern.text,)])}


def _sorted(things: set[Thing]) -> tuple[tuple[str, ...], tuple[TopicPartition, ...], str | None]:
    """Topics, partitions and the pattern."""
    topics = tuple(sorted(thing for thing in things if isinstance(thing, str)))
    partitions = tuple(sorted(thing for thing in things if isinstance(thing, TopicPartition)))
    return topics, partitions, next((thing[0] for thing in things if type(thing) is tuple), None)


# -- names -------------------------------------------------------------------------------------------------------------


def similar_names(missing: Collection[str], names: Collection[str]) -> dict[str, str]:
    """For each missing topic the most similar of these names, or nothing. Takes 10 µs or more for each pair."""
    found = {name: difflib.get_close_matches(name, names, 1, 0.7) for name in missing}
    return {name: close[0] if close else "" for name, close in found.items()}


def may_match(pattern: str, names: Collection[str]) -> bool:
    """Whether the coordinator may find a topic for this pattern, which is RE2's. If `re` cannot tell, it may."""
    if _ONLY_RE2.search(pattern):
        return True
    try:
        compiled = re.compile(pattern)
    except re.error:
        return True
    return any(compiled.fullmatch(name) for name in names)
