"""The settings of a consumer: Kafka's names and Java's defaults, checked once.

Every setting is a field of `ConsumerConfig` or of its base class `ClientConfig`, which also parses names and values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from .._format import Format
from .._parsers import dotted as dotted
from .._parsers import (
    one_of,
    parse_callback,
    parse_flag,
    parse_id,
    parse_optional_sent_text,
    parse_sent_text,
    parse_text,
    setting,
    whole_number,
)
from ..errors import ConfigError
from .client import ClientConfig
from .other_clients import CONSUMER_HINTS

# -- parsers of single settings; the common ones are in `_parsers.py` ------------------------------------------------


def _limit(value: Any) -> int:
    number: int = whole_number(-1)(value)
    if number == 0:
        raise ValueError("must be at least 1, or -1 for no limit")
    return number


def _share(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number between 0 and 1") from None
    if isinstance(value, bool) or not 0 < number < 1:
        raise ValueError("must be above 0 and below 1")
    return number


def _deserializer(value: Any) -> Any:
    if value is not None and not isinstance(value, Format) and not callable(value):
        raise ValueError("must be a format such as headrace.formats.Json, or a function that takes bytes")
    return value


def _strategies(value: Any) -> tuple[Any, ...]:
    """Names, or a user's own assignor objects. `_machines/group/assignors` checks both."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    found = tuple(item.strip() if isinstance(item, str) else item for item in items)
    if not found or "" in found:
        raise ValueError("must name at least one strategy")
    return found


_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


def _reset(value: Any) -> str:
    text = parse_text(value).lower()
    if text in ("earliest", "latest", "none"):
        return text
    if text.startswith("by_duration:"):
        reset_duration_ms(text)
        return text
    raise ValueError("must be earliest, latest, none or by_duration:<ISO 8601 duration, such as P1DT2H>")


def reset_duration_ms(reset: str) -> int:
    """The duration of `by_duration:…` in milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(reset.partition(":")[2].strip())
    if match is None or match["sign"] or not any(match[part] for part in "dhms"):
        raise ValueError("by_duration needs a positive ISO 8601 duration, such as by_duration:P1DT2H30M")
    days, hours, minutes = (int(match[part] or 0) for part in "dhm")
    try:
        return round(((days * 24 + hours) * 60 + minutes) * 60_000 + float(match["s"] or 0) * 1000)
    except OverflowError:
        raise ValueError("the duration of by_duration is too long") from None


# -- the settings ---------------------------------------------------------------------------------------------

_ms = whole_number(0)
_bytes = whole_number(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The checked settings of a consumer."""

    role: ClassVar[str] = "consumer"
    unsupported: ClassVar[Mapping[str, str]] = {
        "interceptor_classes": "there are no interceptors: wrap poll() instead",
        **CONSUMER_HINTS,
        **ClientConfig.unsupported,
    }

    client_rack: str = setting(
        parse_sent_text, "", "The rack of this client. It fetches from a replica in that rack, if any (KIP-392)."
    )

    group_id: str | None = setting(parse_id, None, "The consumer group to join, and to commit offsets to.")
    group_protocol: str = setting(
        one_of("classic", "consumer"),
        "classic",
        "Which side assigns partitions: a member of the group (classic) or the coordinator (consumer, KIP-848).",
    )
    group_instance_id: str | None = setting(
        parse_id,
        None,
        "Makes this a static member: it keeps its partitions if it restarts within the session timeout.",
    )
    group_remote_assignor: str | None = setting(
        parse_optional_sent_text, None, "With group.protocol=consumer: the coordinator's assignor, uniform or range."
    )
    partition_assignment_strategy: tuple[Any, ...] = setting(
        _strategies,
        ("range", "cooperative-sticky"),
        "With group.protocol=classic: range, roundrobin, sticky, cooperative-sticky or a custom Assignor, in order of "
        "preference.",
    )
    session_timeout_ms: int = setting(
        whole_number(1),
        45_000,
        "With group.protocol=classic: the coordinator removes a member that sends no heartbeat for this long.",
    )
    heartbeat_interval_ms: int = setting(
        whole_number(1), 3_000, "With group.protocol=classic: the time between heartbeats."
    )
    max_poll_interval_ms: int = setting(
        whole_number(1),
        300_000,
        "A member that does not call poll() for this long leaves the group (KIP-62). With run(), it limits each call "
        "of the handler. A rebalance waits for its members for the longest such time in the group.",
    )
    revoke_mode: str = setting(
        one_of("deferred", "immediate"),
        "deferred",
        "When a revoked partition is given up: in a later poll(), so that its records can be finished (deferred, "
        "KIP-983), or in the same poll() (immediate).",
    )
    exclude_internal_topics: bool = setting(
        parse_flag,
        True,
        "Patterns do not match Kafka's internal topics. Has no effect on patterns that the coordinator matches.",
    )
    enable_auto_commit: bool = setting(
        parse_flag,
        True,
        "Commit the offsets of returned records automatically, in a later poll() and in close(). Without a group.id, "
        "the default is false.",
    )
    commit_mode: str = setting(
        one_of("returned", "done"),
        "returned",
        "What commit() and auto-commit cover: all records that poll() returned (returned), or the records that are "
        "marked with done() (done).",
    )
    auto_commit_interval_ms: int = setting(_ms, 5_000, "The time between automatic commits.")
    auto_offset_reset: str = setting(
        _reset,
        "latest",
        "Where to start without a committed offset, or when the log no longer contains the position: earliest, latest, "
        "none (raise an error) or by_duration:P1D (records of the last day).",
    )

    enable_parallel_rebalance: bool = setting(
        parse_flag,
        False,
        "After a crash or a rebalance, resume at the end of the log at once, and consume the skipped records (the "
        "backlog) in parallel (KIP-333). The progress of the backlog is committed to the group <group.id>.backlog.",
    )
    parallel_rebalance_min_lag: int = setting(
        whole_number(1), 1, "With enable.parallel.rebalance: partitions with a smaller lag resume without a backlog."
    )
    parallel_rebalance_backlog_share: float = setting(
        _share,
        0.25,
        "With enable.parallel.rebalance: the fraction of a poll() that is reserved for the backlog when live records "
        "would fill it.",
    )

    key_deserializer: Any = setting(  # noqa: RUF009 - a format or function, which is not copied
        _deserializer,
        None,
        "Decodes record.key: a format such as headrace.formats.Avro, or a function that takes bytes. Not called for "
        "null.",
    )
    value_deserializer: Any = setting(  # noqa: RUF009
        _deserializer,
        None,
        "Decodes record.value: a format such as headrace.formats.Avro, or a function that takes bytes, such as "
        "json.loads. Not called for null.",
    )

    max_poll_records: int = setting(
        _limit, 500, "The maximum number of records that poll() returns (KIP-41). -1 means no limit."
    )
    poll_drain_strategy: str = setting(
        one_of("fair", "greedy"),
        "fair",
        "How poll() distributes max.poll.records over partitions: equally (fair), or one partition after the other "
        "(greedy).",
    )
    queued_max_bytes: int = setting(
        whole_number(1), 40 * 2**20, "The maximum size of fetched records that poll() has not returned yet."
    )
    isolation_level: str = setting(
        one_of("read_uncommitted", "read_committed"),
        "read_uncommitted",
        "read_committed skips the records of open and aborted transactions. An exactly-once run() reads them with "
        "read_committed, unless this is set to read_uncommitted, which it refuses.",
    )
    check_crcs: bool = setting(parse_flag, True, "Verify the CRC-32C of every record batch.")
    fetch_min_bytes: int = setting(
        _bytes, 1, "The broker responds to a fetch when it has this many bytes, or after fetch.max.wait.ms."
    )
    fetch_max_wait_ms: int = setting(_ms, 500, "How long the broker waits for fetch.min.bytes before it responds.")
    fetch_max_bytes: int = setting(
        whole_number(1), 50 * 2**20, "The maximum size of one fetch response. A single larger batch is still returned."
    )
    max_partition_fetch_bytes: int = setting(
        whole_number(1),
        2**20,
        "The maximum size of one partition in a fetch response. A single larger batch is still returned.",
    )
    decompressed_batch_max_bytes: int = setting(
        whole_number(1000),
        256 * 2**20,
        "A record batch that decompresses to more is rejected as a decompression bomb.",
    )

    on_event: Any = setting(  # noqa: RUF009
        parse_callback,
        None,
        "A function that receives the events of headrace.events: failing heartbeats, a membership at risk or lost, a "
        "stuck handler of run(). It is called on a thread of its own.",
    )

    @property
    def reads_committed(self) -> bool:
        """It can become true later, by `read_committed`: ask when it is needed."""
        return self.isolation_level == "read_committed"

    def read_committed(self) -> None:
        """An exactly-once run() has begun. The only setting that changes after the consumer was created."""
        object.__setattr__(self, "isolation_level", "read_committed")

    @property
    def has_formats(self) -> bool:
        """Whether keys or values are decoded by formats, which may have to wait for a schema registry."""
        return isinstance(self.key_deserializer, Format) or isinstance(self.value_deserializer, Format)

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> ConsumerConfig:
        """Parse settings from a mapping with dotted names, from keywords with underscores, or from both.

        Raises TypeError if `config` is not a mapping. Raises ConfigError if a setting is unknown, invalid or given
        twice, if settings contradict each other, or if certificates or keys cannot be read.
        """
        values = cls._parse_values(config, keywords)
        if values.get("group_id") is None:
            if values.get("enable_auto_commit"):
                raise ConfigError("enable.auto.commit=true needs a group.id to commit offsets to")
            values["enable_auto_commit"] = False
            if values.get("enable_parallel_rebalance"):
                raise ConfigError("enable.parallel.rebalance=true needs a group.id to commit the backlog's ranges to")
        _check_group(values)
        return cls._create(values)


# Settings that only one group protocol has. With the consumer protocol, the coordinator's settings replace these.
_OF_CLASSIC = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")
_OF_CONSUMER = ("group_remote_assignor",)
_LONGEST_NAME = 249


def _check_group(values: Mapping[str, Any]) -> None:
    protocol = values.get("group_protocol", "classic")
    for name in _OF_CONSUMER if protocol == "classic" else _OF_CLASSIC:
        if values.get(name) is not None:
            raise ConfigError(f"{dotted(name)} cannot be set with group.protocol={protocol}")
    instance = values.get("group_instance_id")
    if instance is not None:
        if values.get("group_id") is None:
            raise ConfigError("group.instance.id needs a group.id")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", instance) or instance in (".", "..") or len(instance) > _LONGEST_NAME:
            raise ConfigError(
                f"group.instance.id={instance!r}: at most {_LONGEST_NAME} letters, digits, '.', '_' and '-' are allowed"
            )
    session = values.get("session_timeout_ms", ConsumerConfig.session_timeout_ms)
    heartbeat = values.get("heartbeat_interval_ms", ConsumerConfig.heartbeat_interval_ms)
    if protocol == "classic" and heartbeat >= session:
        raise ConfigError("heartbeat.interval.ms must be lower than session.timeout.ms, usually a third of it")
