"""The options of the source: Spark's own for its Kafka source, with its defaults, precedences and refusals.

Names are case-insensitive. What is wrong is said when the query starts, by an OptionError, and not in a task. Options
that only the JVM connector understands are accepted and logged; one that looks like a misspelt known one is refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from ..config import ConsumerConfig, dotted
from ..errors import ConfigError
from ..security.settings import FOREIGN, SYNONYMS
from ..types import TopicPartition

log = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2


class OptionError(ConfigError, ValueError):
    """An option of the source is missing, wrong, or contradicts another one."""


# -- what to read --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Assigned:
    partitions: frozenset[TopicPartition]

    @property
    def names(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})


@dataclasses.dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return list(self.topics)


@dataclasses.dataclass(frozen=True, slots=True)
class Matching:
    pattern: re.Pattern[str]


# -- from where, to where ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class AtEnd:
    """LATEST or EARLIEST, of all partitions."""

    which: int


@dataclasses.dataclass(frozen=True, slots=True)
class AtOffsets:
    """Of each partition; may be LATEST or EARLIEST."""

    offsets: Mapping[TopicPartition, int]


@dataclasses.dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after it, in milliseconds: one time for all, or one for each partition."""

    everywhere: int | None
    each: Mapping[TopicPartition, int]


Bound = AtEnd | AtOffsets | AtTime


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """All of them, checked. Picklable: executors get it."""

    strategy: Assigned | Subscribed | Matching
    starting: Bound
    ending: Bound
    falls_back_to_latest: bool  # where no record is as young as asked for; else that is an error
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay: float
    shares: str  # how max_offsets is shared out: fair or proportional
    min_partitions: int | None
    max_records_per_partition: int | None
    attempts: int
    attempt_pause: float
    poll_timeout: float
    settings: Mapping[str, str] = dataclasses.field(repr=False)  # of the consumers, secrets included

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Raises OptionError."""
        options = {str(name).lower(): str(value) for name, value in given.items()}
        _check_names(given, streaming)
        strategy = _strategy(options)
        starting = _bound(options, "starting", AtEnd(LATEST if streaming else EARLIEST))
        ending = _bound(options, "ending", AtEnd(LATEST))
        if streaming:
            _refuse_ending(options)
        else:
            _check_batch(starting, ending)
        least, most = _count(options, "minoffsetspertrigger"), _count(options, "maxoffsetspertrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
        if not streaming and (least is not None or most is not None):
            log.warning("minOffsetsPerTrigger and maxOffsetsPerTrigger mean nothing in a batch query")
        return cls(
            strategy=strategy,
            starting=starting,
            ending=ending,
            falls_back_to_latest=_choice(options, "startingoffsetsbytimestampstrategy", ("error", "latest"), "error")
            == "latest",
            fail_on_data_loss=_flag(options, "failondataloss", default=True),
            include_headers=_flag(options, "includeheaders", default=False),
            max_offsets=most,
            min_offsets=least,
            max_trigger_delay=_duration(options.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            shares=_choice(options, "maxoffsetspertriggershares", ("fair", "proportional"), "fair"),
            min_partitions=_count(options, "minpartitions"),
            max_records_per_partition=_count(options, "maxrecordsperpartition"),
            attempts=_count(options, "fetchoffset.numretries") or 3,
            attempt_pause=(_count(options, "fetchoffset.retryintervalms", low=0) or 10) / 1000,
            poll_timeout=(_count(options, "kafkaconsumer.polltimeoutms") or 120_000) / 1000,
            settings=_settings(options),
        )


# -- names ---------------------------------------------------------------------------------------------------------

_KNOWN = {
    name.lower(): name
    for name in (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "endingOffsets",
        "failOnDataLoss",
        "includeHeaders",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxOffsetsPerTriggerShares",
        "minPartitions",
        "maxRecordsPerPartition",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "groupIdPrefix",
        "commitOffsets",
        "enable.parallel.rebalance",
        "parallel.rebalance.min.lag",
        "parallel.rebalance.backlog.share",
        "includeLane",
        "group.membership",
        "share.group.id",
    )
}
# Of Spark itself, or of the JVM connector alone.
_WITHOUT_MEANING = {"path", "useuninterruptiblethread", "useduplicatedconsumer", "checkpointlocation", "kafka.group.id"}


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    for name in given:
        low = str(name).lower()
        if low in _KNOWN or low.startswith("kafka.") or low in _WITHOUT_MEANING:
            continue
        close = difflib.get_close_matches(low, _KNOWN, n=1, cutoff=0.8)
        if close:
            raise OptionError(f"unknown option {name}: did you mean {_KNOWN[close[0]]}?")
        log.warning("the option %s means nothing to this source", name)


# -- single options ------------------------------------------------------------------------------------------------


def _strategy(options: Mapping[str, str]) -> Assigned | Subscribed | Matching:
    names = ("assign", "subscribe", "subscribepattern")
    chosen = [name for name in names if name in options]
    shown = ", ".join(_KNOWN[name] for name in names)
    if not chosen:
        raise OptionError(f"one of these options must be given: {shown}")
    if len(chosen) > 1:
        raise OptionError(f"only one of these options can be given: {shown}")
    value = options[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={value!r} names no topic")
        return Subscribed(topics)
    if chosen[0] == "subscribepattern":
        if not value:
            raise OptionError("subscribePattern is empty")
        try:
            return Matching(re.compile(value))
        except re.error as error:
            raise OptionError(f"subscribePattern={value!r} is not a regular expression: {error}") from None
    found = _json(value, "assign")
    partitions = [
        TopicPartition(topic, _number(number, "assign"))
        for topic, numbers in found.items()
        for number in (numbers if isinstance(numbers, list) else _refuse("assign", value))
    ]
    if not partitions:
        raise OptionError(f'assign={value!r} names no partition; write {{"topic":[0,1]}}')
    return Assigned(frozenset(partitions))


def _refuse(name: str, value: str) -> Any:
    raise OptionError(f'{name}={value!r}: lists of partitions are needed, as {{"topic":[0,1]}}')


def _bound(options: Mapping[str, str], which: str, default: Bound) -> Bound:
    """By Spark's precedence: one time, times, offsets."""
    once, by_time, by_offset = f"{which}timestamp", f"{which}offsetsbytimestamp", f"{which}offsets"
    if once in options:
        return AtTime(_number(options[once], _KNOWN[once], low=0), {})
    if by_time in options:
        return AtTime(None, _by_partition(options[by_time], _KNOWN[by_time], low=0))
    value = options.get(by_offset, "").strip()
    if not value:
        return default
    if value.lower() in ("latest", "earliest"):
        return AtEnd(LATEST if value.lower() == "latest" else EARLIEST)
    return AtOffsets(_by_partition(value, _KNOWN[by_offset], low=EARLIEST))


def _refuse_ending(options: Mapping[str, str]) -> None:
    for name in ("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"):
        if name in options:
            raise OptionError(f"{_KNOWN[name]} cannot be given in a streaming query: it has no end")


def _check_batch(starting: Bound, ending: Bound) -> None:
    if starting == AtEnd(LATEST):
        raise OptionError("startingOffsets=latest: a batch query would read nothing")
    if ending == AtEnd(EARLIEST):
        raise OptionError("endingOffsets=earliest: a batch query would read nothing")
    if isinstance(starting, AtOffsets) and (found := [tp for tp, at in starting.offsets.items() if at == LATEST]):
        raise OptionError(f"startingOffsets of {found[0]} is latest (-1): a batch query would read nothing")
    if isinstance(ending, AtOffsets) and (found := [tp for tp, at in ending.offsets.items() if at == EARLIEST]):
        raise OptionError(f"endingOffsets of {found[0]} is earliest (-2): a batch query would read nothing")


def _by_partition(text: str, name: str, low: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json(text, name).items():
        if not isinstance(numbers, dict):
            raise OptionError(f'{name}: write {{"topic":{{"0":23,"1":-1}}}}, not {text!r}')
        for number, value in numbers.items():
            found[TopicPartition(topic, _number(number, name))] = _number(value, name, low=low)
    return found


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f'{name}={text!r}: JSON by topic is needed, as {{"topic":{{"0":23,"1":-1}}}}')
    return found


def _number(value: Any, name: str, low: int = 0) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: {value!r} is not a whole number") from None
    if number < low:
        raise OptionError(f"{name}: {number} is too small")
    return number


def _count(options: Mapping[str, str], name: str, low: int = 1) -> int | None:
    return None if name not in options else _number(options[name].strip(), _KNOWN[name], low)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{_KNOWN[name]}={value!r}: true or false is needed")
    return value == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = options.get(name, default).strip().lower()
    if value not in choices:
        raise OptionError(f"{_KNOWN[name]}={value!r}: {' or '.join(choices)} is needed")
    return value


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def _duration(text: str, name: str) -> float:
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise OptionError(f"{name}={text!r}: a time is needed, as 15m, 90s or 500ms")
    return int(found[1]) * _UNITS[found[2]]


# -- the consumers' settings ---------------------------------------------------------------------------------------

_SETTINGS = {dotted(field.name) for field in dataclasses.fields(ConsumerConfig)}
# How a client logs in is never passed over: other clients' names are understood, or refused with what to use instead.
_SECURITY = {dotted(name) for name in (*SYNONYMS, *FOREIGN)}
_REFUSED = {
    "auto.offset.reset": "use startingOffsets=earliest or latest",
    "key.deserializer": "keys come as binary: cast them in the query",
    "value.deserializer": "values come as binary: cast them in the query",
    "enable.auto.commit": "offsets are kept in the query's checkpoint",
    "interceptor.classes": "there are no interceptors",
}
# Of a group's member, or of what this source decides itself.
_UNUSED = {
    "group.id",
    "max.poll.records",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "auto.commit.interval.ms",
    "commit.mode",
    "enable.parallel.rebalance",
    "poll.drain.strategy",
}


def _settings(options: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in options.items():
        if not name.startswith("kafka."):
            continue
        name = name.removeprefix("kafka.")
        if name in _REFUSED:
            raise OptionError(f"kafka.{name} is not supported: {_REFUSED[name]}")
        if name in _UNUSED:
            continue
        if name in _SETTINGS or name in _SECURITY:
            settings[name] = value
            continue
        close = difflib.get_close_matches(name, _SETTINGS, n=1, cutoff=0.9)
        if close:
            raise OptionError(f"unknown option kafka.{name}: did you mean kafka.{close[0]}?")
        log.warning("the option kafka.%s is one of Java's client and means nothing here", name)
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("the option kafka.bootstrap.servers must be given: host:port,host:port")
    settings["client.id"] = settings.get("client.id", "headrace-spark")
    try:
        ConsumerConfig.parse(settings)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None
    return settings
