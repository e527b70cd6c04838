"""What the driver looks up in Kafka: which partitions exist, and their earliest, latest and timestamp's offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from .._machines.missing_topics import MissingTopics, Thing, similar_names
from ..errors import HeadraceError, NetworkError
from ..sync import Consumer
from ..types import TopicPartition, Watermarks
from .consumer_access import all_refuse, topics_and_ends
from .offset_range import Offsets
from .options.offset_limits import EARLIEST, LATEST, EarliestOrLatest, OffsetRangeLimit, SpecificOffsets
from .options.source import AssignStrategy, OptionError, SourceOptions, SubscribePatternStrategy, SubscribeStrategy

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT = 15.0
"""A query fails after this many seconds, or after all retries of fetchOffset.* if they take longer, if all of its
bootstrap servers refuse connections."""


def create_standalone_consumer(settings: Mapping[str, str]) -> Consumer:
    """A consumer that reads nothing and is not a member of a group: it looks up offsets, or commits."""
    return Consumer(settings, enable_auto_commit=False, allow_auto_create_topics=False)


class OffsetLookup:
    """Uses a consumer of its own, which close() closes; or one that is borrowed and stays open."""

    def __init__(self, options: SourceOptions, borrowed: Consumer | None = None) -> None:
        self._options = options
        self._own: Consumer | None = None
        self._borrowed = borrowed
        self._has_connected = False
        self._last_partitions: frozenset[TopicPartition] = frozenset()
        self._missing = MissingTopics(None, patience=0.0)

    # -- partitions ------------------------------------------------------------------------------------------------

    def selected_partitions(self) -> set[TopicPartition]:
        """The partitions that the options select. Raises OptionError if the options name one that does not exist."""
        found, strategy = self.existing_partitions(), self._options.strategy
        if isinstance(strategy, AssignStrategy) and (absent := sorted(strategy.partitions - found)):
            raise OptionError(f"assign names partitions that do not exist: {_shown(absent)}")
        if isinstance(strategy, SubscribeStrategy):
            missing = sorted(set(strategy.topics) - {tp.topic for tp in found})
            if missing:
                names = ", ".join(map(self._hinted(missing), missing))
                raise OptionError(f"subscribe names topics that do not exist: {names}")
        return found

    def existing_partitions(self) -> set[TopicPartition]:
        """The selected partitions that exist now: a topic can be deleted while a query reads it."""
        return self._partitions_and_ends(())[0]

    def partition_exists(self, tp: TopicPartition) -> bool:
        found, _ = self._connect(lambda timeout: topics_and_ends(self._consumer, [tp.topic], (), timeout))
        return tp.partition in {info.partition for info in found.get(tp.topic, ())}

    def existing_end_offsets(self) -> Offsets:
        """The end offsets of the selected partitions that exist now. Looks up those of the partitions that existed last
        time in the same round trip."""
        found, ends = self._partitions_and_ends(self._last_partitions)
        self._last_partitions = frozenset(found)
        return {tp: ends[tp] for tp in found & ends.keys()} | self.latest_offsets(found - ends.keys())

    def _partitions_and_ends(self, known: Collection[TopicPartition]) -> tuple[set[TopicPartition], Offsets]:
        strategy = self._options.strategy
        names = None if isinstance(strategy, SubscribePatternStrategy) else strategy.names
        found, ends = self._connect(lambda timeout: topics_and_ends(self._consumer, names, known, timeout))
        if isinstance(strategy, SubscribePatternStrategy):
            found = {name: found[name] for name in found if strategy.matches(name)}
        existing = {TopicPartition(topic, info.partition) for topic, infos in found.items() for info in infos}
        self._report_missing(found)
        return existing & strategy.partitions if isinstance(strategy, AssignStrategy) else existing, ends

    def _report_missing(self, found: Collection[str]) -> None:
        """A pattern that matches nothing is no error: a topic may be created later. A topic that was deleted is one,
        unless failOnDataLoss is false."""
        strategy = self._options.strategy
        if isinstance(strategy, SubscribePatternStrategy):
            wanted: set[Thing] = {(strategy.pattern.pattern,)}
            absent = set() if found else wanted
        else:
            wanted = set(strategy.names)
            absent = wanted.difference(found)
        for event in self._missing.look_at(wanted, absent, time.monotonic()):
            log.log(logging.WARNING if event.is_warning else logging.INFO, "%s", event)

    def _hinted(self, missing: Collection[str]) -> Callable[[str], str]:
        """Adds to each missing topic one with a similar name."""
        names, _ = self._connect(lambda timeout: topics_and_ends(self._consumer, None, (), timeout))
        similar = similar_names(missing, names)
        return lambda name: f"{name} (did you mean {similar[name]}?)" if similar[name] else name

    # -- offsets ---------------------------------------------------------------------------------------------------

    def earliest_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._retry(lambda: self._consumer.beginning_offsets(partitions)) if partitions else {}

    def latest_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._retry(lambda: self._consumer.end_offsets(partitions)) if partitions else {}

    def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Of the logs themselves, including open transactions."""
        return {tp: self._retry(lambda tp=tp: self._consumer.watermarks(tp)) for tp in partitions}  # type: ignore[misc]

    def confirm_latest_offsets(self, known: Offsets) -> Offsets:
        """The latest offsets of partitions whose log seemed to end before `known`. A broker that has just become the
        leader may return too low an offset (KAFKA-7703), so this asks again, as often as fetchOffset.* allow."""
        found = self.latest_offsets(known.keys())
        for _ in range(self._options.retry_attempts - 1):
            if all(found[tp] >= end for tp, end in known.items()):
                break
            time.sleep(self._options.retry_interval)
            found = self.latest_offsets(known.keys())
        return found

    def still_behind(self, known: Offsets) -> list[TopicPartition]:
        """The partitions whose log still seems to end before `known`."""
        if not known:
            return []
        return [tp for tp, end in self.confirm_latest_offsets(known).items() if end < known[tp]]

    def resolve(self, limit: OffsetRangeLimit, partitions: Collection[TopicPartition], which: str) -> Offsets:
        """The offsets that an option means (`which` is starting or ending). Raises OptionError if the option does not
        name exactly these partitions."""
        if isinstance(limit, EarliestOrLatest):
            return self.latest_offsets(partitions) if limit.which == LATEST else self.earliest_offsets(partitions)
        if isinstance(limit, SpecificOffsets):
            _check_same(limit.offsets, partitions, f"{which}Offsets", "use -1 for latest and -2 for earliest")
            return self._resolve_specific(limit.offsets, which)
        if limit.global_timestamp is None:
            _check_same(limit.timestamps, partitions, f"{which}OffsetsByTimestamp", "set a timestamp for each")
            times = limit.timestamps
        else:
            times = dict.fromkeys(partitions, limit.global_timestamp)
        return self._by_timestamp(times, falls_back=which == "ending" or self._options.falls_back_to_latest)

    def is_certain(self, limit: OffsetRangeLimit, tp: TopicPartition) -> bool:
        """Whether the option means a certain offset, and not the beginning or the end of the log, whatever that is."""
        if isinstance(limit, EarliestOrLatest):
            return False
        if isinstance(limit, SpecificOffsets):
            return limit.offsets[tp] >= 0
        at = limit.timestamps[tp] if limit.global_timestamp is None else limit.global_timestamp
        return self._retry(lambda: self._consumer.offsets_for_times({tp: at}))[tp] is not None

    def _resolve_specific(self, offsets: Mapping[TopicPartition, int], which: str) -> Offsets:
        earliest = self.earliest_offsets([tp for tp, at in offsets.items() if at == EARLIEST])
        latest = self.latest_offsets([tp for tp, at in offsets.items() if at == LATEST])
        found = {**offsets, **earliest, **latest}
        if which == "starting":
            ends = self.latest_offsets([tp for tp, at in offsets.items() if at > 0])
            for tp, log_ends in self.watermarks([tp for tp, end in ends.items() if end < found[tp]]).items():
                if log_ends.high < found[tp]:
                    raise OptionError(f"startingOffsets of {tp} is {found[tp]}, but its log ends at {log_ends.high}")
        return found

    def offsets_since(self, timestamp: int, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset of the first record at or after the timestamp; the end of the log if there is none."""
        return self._by_timestamp(dict.fromkeys(partitions, timestamp), falls_back=True)

    def _by_timestamp(self, times: Mapping[TopicPartition, int], *, falls_back: bool) -> Offsets:
        found = self._retry(lambda: self._consumer.offsets_for_times(times)) if times else {}
        without = [tp for tp, at in found.items() if at is None]
        if without and not falls_back:
            raise OptionError(
                f"{without[0]} has no record at or after timestamp {times[without[0]]}. Set "
                f"startingOffsetsByTimestampStrategy=latest to start at the end of its log"
            )
        return {tp: at.offset for tp, at in found.items() if at is not None} | self.latest_offsets(without)

    # -- requests --------------------------------------------------------------------------------------------------

    @property
    def _consumer(self) -> Consumer:
        if self._borrowed is not None:
            return self._borrowed
        if self._own is None:
            self._own = create_standalone_consumer(self._options.settings)
        return self._own

    def _connect(self, ask: Callable[[float | None], T]) -> T:
        """For requests that may be the first ones. A query does not retry for minutes if all of its bootstrap servers
        refuse connections; brokers that have answered once may be unavailable for longer."""
        if self._has_connected:
            return self._retry(lambda: ask(None))
        timeout = max(CONNECT_TIMEOUT, self._options.retry_attempts * self._options.retry_interval)
        try:
            found = ask(timeout)
        except HeadraceError as error:
            if not error.retriable:
                raise
            if all_refuse(self._consumer):
                servers = self._options.settings["bootstrap.servers"]
                raise NetworkError(
                    f"Cannot connect to any server of kafka.bootstrap.servers={servers}. Check that Kafka is running "
                    f"there. Last error: {error.__cause__ or error}"
                ) from error
            found = ask(None)
        self._has_connected = True
        return found

    def _retry(self, ask: Callable[[], T]) -> T:
        attempts_left = self._options.retry_attempts
        while True:
            try:
                return ask()
            except HeadraceError as error:
                attempts_left -= 1
                if attempts_left <= 0 or not error.retriable:
                    raise
                log.info("Retrying a request to Kafka: %s", error)
                time.sleep(self._options.retry_interval)

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()


def _check_same(
    given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], name: str, hint: str
) -> None:
    if set(given) != set(partitions):
        missing, extra = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
        parts = [f"misses {_shown(missing)}" if missing else "", f"also has {_shown(extra)}" if extra else ""]
        raise OptionError(
            f"{name} must name exactly the partitions that the query reads, {hint}. "
            f"It {' and '.join(filter(None, parts))}"
        )


def _shown(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:5])) + (" …" if len(partitions) > 5 else "")
