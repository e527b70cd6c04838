"""What the driver asks of Kafka: which partitions there are, where their logs begin and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ..errors import HeadraceError
from ..sync import Consumer
from ..types import TopicPartition
from .options import (
    EARLIEST,
    LATEST,
    Assigned,
    AtEnd,
    AtOffsets,
    AtTime,
    Bound,
    Matching,
    OptionError,
    SourceOptions,
    Subscribed,
)
from .ranges import Offsets

log = logging.getLogger(__name__)

T = TypeVar("T")


class Logs:
    """One consumer that reads nothing. To be closed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer: Consumer | None = None

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
        return self._tried(self._present)

    def _present(self) -> set[TopicPartition]:
        strategy = self._options.strategy
        if isinstance(strategy, Matching):
            every = self._ask.list_topics()
            found = {name: every[name] for name in every if strategy.pattern.search(name) and not _is_internal(name)}
        else:
            found = {topic: self._ask.partitions_for_topic(topic) for topic in strategy.names}
        there = {TopicPartition(topic, info.partition) for topic, infos in found.items() for info in infos}
        return there & strategy.partitions if isinstance(strategy, Assigned) else there

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._tried(lambda: self._ask.beginning_offsets(partitions)) if partitions else {}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._tried(lambda: self._ask.end_offsets(partitions)) if partitions else {}

    def at(self, bound: Bound, partitions: Collection[TopicPartition], what: str, *, is_end: bool = False) -> Offsets:
        """The offsets that an option means. Raises OptionError if it does not fit these partitions."""
        if isinstance(bound, AtEnd):
            return self.latest(partitions) if bound.which == LATEST else self.earliest(partitions)
        if isinstance(bound, AtOffsets):
            _check_same(bound.offsets, partitions, f"{what}Offsets", "use -1 for latest and -2 for earliest")
            return self._named(bound.offsets)
        return self._by_time(bound, partitions, what, is_end)

    def _named(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        earliest = self.earliest([tp for tp, at in offsets.items() if at == EARLIEST])
        latest = self.latest([tp for tp, at in offsets.items() if at == LATEST])
        return {**offsets, **earliest, **latest}

    def _by_time(self, bound: AtTime, partitions: Collection[TopicPartition], what: str, is_end: bool) -> Offsets:
        if bound.everywhere is None:
            _check_same(bound.each, partitions, f"{what}OffsetsByTimestamp", "give a time for each")
            times = dict(bound.each)
        else:
            times = dict.fromkeys(partitions, bound.everywhere)
        found = self._tried(lambda: self._ask.offsets_for_times(times)) if times else {}
        without = [tp for tp, at in found.items() if at is None]
        if without and not is_end and not self._options.falls_back_to_latest:
            raise OptionError(
                f"{without[0]} has no record at or after {times[without[0]]} ms; "
                f"startingOffsetsByTimestampStrategy=latest would start at its end"
            )
        return {tp: at.offset for tp, at in found.items() if at is not None} | self.latest(without)

    def since(self, timestamp: int, partitions: Collection[TopicPartition]) -> Offsets:
        """Where the first record at or after the time lies; the log's end if there is none."""
        if not partitions:
            return {}
        times = dict.fromkeys(partitions, timestamp)
        found = self._tried(lambda: self._ask.offsets_for_times(times))
        return {tp: at.offset for tp, at in found.items() if at is not None} | self.latest(
            [tp for tp, at in found.items() if at is None]
        )

    @property
    def _ask(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._options.settings, enable_auto_commit=False, allow_auto_create_topics=False)
        return self._consumer

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
        if consumer is not None:
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
