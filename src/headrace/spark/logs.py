"""What the driver asks of Kafka: which partitions there are, where their logs begin and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ..errors import HeadraceError, NetworkError
from ..sync import Consumer
from ..types import TopicPartition, Watermarks
from .consumer_settings import idle_consumer
from .inside import all_refuse, topics_and_ends
from .options import (
    EARLIEST,
    LATEST,
    Assigned,
    AtEnd,
    AtOffsets,
    Bound,
    Matching,
    OptionError,
    SourceOptions,
    Subscribed,
)
from .ranges import Offsets

log = logging.getLogger(__name__)

T = TypeVar("T")

REFUSED_FOR = 15.0
"""After so many seconds, or longer by fetchOffset.*, a query fails whose bootstrap servers all refuse connections."""


class Logs:
    """One consumer that reads nothing, to be closed; or a consumer that is lent to it and stays open."""

    def __init__(self, options: SourceOptions, lent: Consumer | None = None) -> None:
        self._options = options
        self._consumer = lent
        self._is_lent = lent is not None
        self._has_answered = False
        self._known: frozenset[TopicPartition] = frozenset()

    def chosen(self) -> set[TopicPartition]:
        """The partitions that the options choose. Raises OptionError if they name what does not exist."""
        found, strategy = self.present(), self._options.strategy
        if isinstance(strategy, Assigned) and (absent := sorted(strategy.partitions - found)):
            raise OptionError(f"there is no partition {_shown(absent)}")
        if isinstance(strategy, Subscribed) and (missing := sorted(set(strategy.topics) - {tp.topic for tp in found})):
            raise OptionError(f"there is no topic {', '.join(missing)}")
        return found

    def present(self) -> set[TopicPartition]:
        """Those of them that exist now: a topic can be deleted while it is read."""
        return self._look(())[0]

    def has(self, tp: TopicPartition) -> bool:
        """Whether this partition exists now."""
        found, _ = self._reached(lambda timeout: topics_and_ends(self._ask, [tp.topic], (), timeout))
        return tp.partition in {info.partition for info in found.get(tp.topic, ())}

    def ends(self) -> Offsets:
        """Of those that exist now, where their logs end. Asks for those that were there last time as well while it asks
        which there are."""
        found, ends = self._look(self._known)
        self._known = frozenset(found)
        return {tp: ends[tp] for tp in found & ends.keys()} | self.latest(found - ends.keys())

    def _look(self, known: Collection[TopicPartition]) -> tuple[set[TopicPartition], Offsets]:
        strategy = self._options.strategy
        names = None if isinstance(strategy, Matching) else strategy.names
        found, ends = self._reached(lambda timeout: topics_and_ends(self._ask, names, known, timeout))
        if isinstance(strategy, Matching):
            found = {name: found[name] for name in found if strategy.pattern.search(name) and not _is_internal(name)}
        there = {TopicPartition(topic, info.partition) for topic, infos in found.items() for info in infos}
        return there & strategy.partitions if isinstance(strategy, Assigned) else there, ends

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._tried(lambda: self._ask.beginning_offsets(partitions)) if partitions else {}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._tried(lambda: self._ask.end_offsets(partitions)) if partitions else {}

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Of the logs themselves, open transactions included."""
        return {tp: self._tried(lambda tp=tp: self._ask.watermarks(tp)) for tp in partitions}  # type: ignore[misc]

    def not_before(self, known: Offsets) -> Offsets:
        """Where the logs of these partitions end that were seen to end before `known`: a broker that has just become
        the leader may say less than there is (KAFKA-7703), so it is asked again, as often as fetchOffset.* say."""
        found = self.latest(known.keys())
        for _ in range(self._options.attempts - 1):
            if all(found[tp] >= end for tp, end in known.items()):
                break
            time.sleep(self._options.attempt_pause)
            found = self.latest(known.keys())
        return found

    def at(self, bound: Bound, partitions: Collection[TopicPartition], what: str) -> Offsets:
        """The offsets that an option means (`what` is starting or ending). Raises OptionError if it does not fit these
        partitions."""
        if isinstance(bound, AtEnd):
            return self.latest(partitions) if bound.which == LATEST else self.earliest(partitions)
        if isinstance(bound, AtOffsets):
            _check_same(bound.offsets, partitions, f"{what}Offsets", "use -1 for latest and -2 for earliest")
            return self._named(bound.offsets, what)
        if bound.everywhere is None:
            _check_same(bound.each, partitions, f"{what}OffsetsByTimestamp", "give a time for each")
        times = bound.each if bound.everywhere is None else dict.fromkeys(partitions, bound.everywhere)
        return self._by_time(times, falls_back=what == "ending" or self._options.falls_back_to_latest)

    def _named(self, offsets: Mapping[TopicPartition, int], what: str) -> Offsets:
        earliest = self.earliest([tp for tp, at in offsets.items() if at == EARLIEST])
        latest = self.latest([tp for tp, at in offsets.items() if at == LATEST])
        found = {**offsets, **earliest, **latest}
        if what == "starting":
            ends = self.latest([tp for tp, at in offsets.items() if at > 0])
            for tp, each in self.bounds([tp for tp, end in ends.items() if end < found[tp]]).items():
                if each.high < found[tp]:
                    raise OptionError(f"startingOffsets of {tp} is {found[tp]}, and its log ends at {each.high}")
        return found

    def since(self, timestamp: int, partitions: Collection[TopicPartition]) -> Offsets:
        """Where the first record at or after the time lies; the log's end if there is none."""
        return self._by_time(dict.fromkeys(partitions, timestamp), falls_back=True)

    def _by_time(self, times: Mapping[TopicPartition, int], *, falls_back: bool) -> Offsets:
        found = self._tried(lambda: self._ask.offsets_for_times(times)) if times else {}
        without = [tp for tp, at in found.items() if at is None]
        if without and not falls_back:
            raise OptionError(
                f"{without[0]} has no record at or after {times[without[0]]} ms; "
                f"startingOffsetsByTimestampStrategy=latest would start at its end"
            )
        return {tp: at.offset for tp, at in found.items() if at is not None} | self.latest(without)

    @property
    def _ask(self) -> Consumer:
        if self._consumer is None:
            self._consumer = idle_consumer(self._options.settings)
        return self._consumer

    def _reached(self, ask: Callable[[float | None], T]) -> T:
        """What is asked first. A query whose bootstrap servers all refuse it is not left to try for minutes; brokers
        that have answered once may be away for longer."""
        if self._has_answered:
            return self._tried(lambda: ask(None))
        patience = max(REFUSED_FOR, self._options.attempts * self._options.attempt_pause)
        try:
            found = ask(patience)
        except HeadraceError as error:
            if not error.retriable:
                raise
            if all_refuse(self._ask):
                servers = self._options.settings["bootstrap.servers"]
                raise NetworkError(
                    f"no server of kafka.bootstrap.servers={servers} accepts connections: is Kafka running there? Last "
                    f"error: {error.__cause__ or error}"
                ) from error
            found = ask(None)
        self._has_answered = True
        return found

    def _tried(self, ask: Callable[[], T]) -> T:
        left = self._options.attempts
        while True:
            try:
                return ask()
            except HeadraceError as error:
                left -= 1
                if left <= 0 or not error.retriable:
                    raise
                log.info("asking Kafka again: %s", error)
                time.sleep(self._options.attempt_pause)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and not self._is_lent:
            consumer.close()


def _is_internal(topic: str) -> bool:
    return topic in ("__consumer_offsets", "__transaction_state", "__share_group_state")


def _check_same(
    given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], name: str, hint: str
) -> None:
    if set(given) != set(partitions):
        missing, extra = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
        parts = [f"it leaves out {_shown(missing)}" if missing else "", f"it has {_shown(extra)}" if extra else ""]
        raise OptionError(
            f"{name} must name exactly the partitions that are read, {hint}: {' and '.join(filter(None, parts))}"
        )


def _shown(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:5])) + (" …" if len(partitions) > 5 else "")
