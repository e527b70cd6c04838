"""Settings: Kafka's names, Java's defaults, checked once.

Names are dotted in a mapping or with underscores as keywords; values may be strings, as they come from files
and from Spark's options. Every setting is a field of `ConsumerConfig`, or of `SecuritySettings` that it inherits: its
type, default, bounds and meaning stand there and nowhere else. A default that is not Java's says why.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .arguments import shown
from .errors import ConfigError
from .security.settings import FOREIGN, SYNONYMS, SecuritySettings, check_security
from .setting_kinds import (
    REQUIRED,
    given_settings,
    one_of,
    parse_flag,
    parse_id,
    parse_optional_sent_text,
    parse_sent_text,
    parse_text,
    setting,
    whole_number,
)
from .setting_kinds import dotted as dotted

# -- parsers of the settings here; the common ones are in `setting_kinds.py` ----------------------------------------


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


def _strategies(value: Any) -> tuple[Any, ...]:
    """Names, or objects that a user made: those are checked where the assignors are known."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    found = tuple(item.strip() if isinstance(item, str) else item for item in items)
    if not found or "" in found:
        raise ValueError("must name at least one strategy")
    return found


def _servers(value: Any) -> tuple[tuple[str, int], ...]:
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError("must be host:port,host:port, or a list of such addresses")
    items = value.split(",") if isinstance(value, str) else list(value)
    found = tuple(_address(str(item).strip()) for item in items if str(item).strip())
    if not found:
        raise ValueError("must name at least one broker as host:port")
    return found


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _address(text: str) -> tuple[str, int]:
    listener, has_listener, address = text.rpartition("://")
    # As brokers write them: PLAINTEXT://host:9092, or a name that somebody gave a listener.
    is_named = re.fullmatch(r"[A-Z][A-Z0-9_.-]*", listener) and listener not in ("HTTP", "HTTPS")
    if has_listener and not (is_named or listener.upper() in _PROTOCOLS):
        raise ValueError(f"{shown(text)} is a URL: a broker is host:port")
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/]+)):(?P<port>[0-9]{1,5})", address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError(f"{shown(text)} is not host:port")
    return match["v6"] or match["host"], int(match["port"])


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
    raise ValueError("must be earliest, latest, none or by_duration:<ISO 8601 duration, as P1DT2H>")


def reset_duration_ms(reset: str) -> int:
    """How far back `by_duration:…` goes."""
    match = _DURATION.fullmatch(reset.partition(":")[2].strip())
    if match is None or match["sign"] or not any(match[part] for part in "dhms"):
        raise ValueError("by_duration needs a positive ISO 8601 duration, as by_duration:P1DT2H30M")
    days, hours, minutes = (int(match[part] or 0) for part in "dhm")
    try:
        return round(((days * 24 + hours) * 60 + minutes) * 60_000 + float(match["s"] or 0) * 1000)
    except OverflowError:
        raise ValueError("by_duration goes back further than time does") from None


# -- the settings ---------------------------------------------------------------------------------------------

_ms = whole_number(0)
_bytes = whole_number(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerConfig(SecuritySettings):
    """The settings of a consumer, after checking. Those of TLS and SASL are in `security/settings.py`."""

    bootstrap_servers: tuple[tuple[str, int], ...] = setting(
        _servers, REQUIRED, "Brokers to ask first, as host:port,host:port. The others are found from them."
    )
    client_id: str = setting(parse_sent_text, "headrace", "The name under which brokers log and meter this client.")
    client_rack: str = setting(parse_sent_text, "", "Where this client stands: fetch from a replica there (KIP-392).")

    group_id: str | None = setting(
        parse_id, None, "The group to be a member of, and under which offsets are committed."
    )
    group_protocol: str = setting(
        one_of("classic", "consumer"),
        "classic",
        "How the group shares its partitions out: a member does (classic), or the coordinator (consumer, KIP-848).",
    )
    group_instance_id: str | None = setting(
        parse_id, None, "Makes a static member: one that may be away for the session timeout, then goes on."
    )
    group_remote_assignor: str | None = setting(
        parse_optional_sent_text, None, "With group.protocol=consumer: the coordinator's assignor, uniform or range."
    )
    partition_assignment_strategy: tuple[Any, ...] = setting(
        _strategies,
        ("range", "cooperative-sticky"),
        "With group.protocol=classic: range, roundrobin, sticky, cooperative-sticky or an Assignor of one's own, in "
        "order of preference.",
    )
    session_timeout_ms: int = setting(
        whole_number(1),
        45_000,
        "With group.protocol=classic: a member without heartbeats for this long is taken for dead.",
    )
    heartbeat_interval_ms: int = setting(
        whole_number(1), 3_000, "With group.protocol=classic: how often heartbeats are sent."
    )
    max_poll_interval_ms: int = setting(
        whole_number(1),
        300_000,
        "A member that does not call poll() for this long leaves the group (KIP-62), as does run() if one call of its "
        "handler takes longer. A rebalance waits for as long.",
    )
    revoke_mode: str = setting(
        one_of("deferred", "immediate"),
        "deferred",
        "When a partition is given up that the group asks back: by a later poll(), so that work on it can end "
        "(KIP-983), or by the same.",
    )
    exclude_internal_topics: bool = setting(
        parse_flag, True, "A pattern that is matched by this client skips Kafka's own topics."
    )
    enable_auto_commit: bool = setting(
        parse_flag, True, "Commit what poll() returned, in a later poll() and at close(). Off without a group.id."
    )
    commit_mode: str = setting(
        one_of("returned", "done"),
        "returned",
        "What commits (and auto-commit) cover: what poll() returned, or what was marked by done() and all before it.",
    )
    auto_commit_interval_ms: int = setting(_ms, 5_000, "How often auto-commit commits.")
    auto_offset_reset: str = setting(
        _reset,
        "latest",
        "Where to start without a usable position: earliest, latest, none (an error), by_duration:P1D.",
    )

    enable_parallel_rebalance: bool = setting(
        parse_flag,
        False,
        "After a crash or a rebalance, go on at the end of the log at once and work off beside it what was skipped "
        "(KIP-333). Progress of that is committed to the group <group.id>.backlog.",
    )
    parallel_rebalance_min_lag: int = setting(
        whole_number(1), 1, "With enable.parallel.rebalance: a partition with a smaller lag simply goes on."
    )
    parallel_rebalance_backlog_share: float = setting(
        _share, 0.25, "With enable.parallel.rebalance: the backlog's part of a poll() that live records would fill."
    )

    max_poll_records: int = setting(_limit, 500, "The most records that poll() returns (KIP-41); -1: no limit.")
    poll_drain_strategy: str = setting(
        one_of("fair", "greedy"),
        "fair",
        "How poll() shares its records over partitions: equal shares, or one partition after the other.",
    )
    queued_max_bytes: int = setting(whole_number(1), 40 * 2**20, "The most that is kept of what was fetched ahead.")
    isolation_level: str = setting(
        one_of("read_uncommitted", "read_committed"),
        "read_uncommitted",
        "read_committed hides the records of open and aborted transactions.",
    )
    check_crcs: bool = setting(parse_flag, True, "Check the CRC-32C of every record batch.")
    fetch_min_bytes: int = setting(_bytes, 1, "A broker answers a fetch when it has this much ...")
    fetch_max_wait_ms: int = setting(_ms, 500, "... or after this time.")
    fetch_max_bytes: int = setting(
        whole_number(1), 50 * 2**20, "The most of one fetch answer (one batch may be larger)."
    )
    max_partition_fetch_bytes: int = setting(whole_number(1), 2**20, "The same for each partition in it.")
    receive_message_max_bytes: int = setting(
        whole_number(1000), 512 * 2**20, "A larger answer is taken for nonsense and ends the connection."
    )
    decompressed_batch_max_bytes: int = setting(
        whole_number(1000), 256 * 2**20, "A record batch that unpacks to more is taken for a decompression bomb."
    )

    allow_auto_create_topics: bool = setting(parse_flag, True, "Asking for an unknown topic may create it.")
    metadata_max_age_ms: int = setting(_ms, 300_000, "Cluster metadata is refreshed when it is this old.")
    metadata_recovery_strategy: str = setting(
        one_of("rebootstrap", "none"), "rebootstrap", "What to do when no known broker can be reached."
    )
    request_timeout_ms: int = setting(whole_number(1), 30_000, "How long to wait for one answer.")
    default_api_timeout_ms: int = setting(whole_number(1), 60_000, "How long a call may take, with its retries.")
    retry_backoff_ms: int = setting(_ms, 100, "The first pause before a request is sent again; then doubled ...")
    retry_backoff_max_ms: int = setting(_ms, 1_000, "... up to this.")
    reconnect_backoff_ms: int = setting(_ms, 50, "The first pause before connecting again to a broker ...")
    reconnect_backoff_max_ms: int = setting(_ms, 1_000, "... doubled up to this.")
    socket_connection_setup_timeout_ms: int = setting(
        whole_number(1), 10_000, "How long one try to connect may take ..."
    )
    socket_connection_setup_timeout_max_ms: int = setting(whole_number(1), 30_000, "... doubled up to this.")
    connections_max_idle_ms: int = setting(
        whole_number(-1), 540_000, "Unused connections are closed after this; -1: never."
    )
    # Java sets 128 and 64 KiB. A fixed size switches off the kernel's own tuning, and with 64 KiB a window of that
    # size is all that a long link carries in each round trip.
    send_buffer_bytes: int = setting(whole_number(-1), -1, "The socket's send buffer; -1: what the system chooses.")
    receive_buffer_bytes: int = setting(
        whole_number(-1), -1, "The socket's receive buffer; -1: what the system chooses."
    )

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> ConsumerConfig:
        """The settings out of a mapping with dotted names, keywords with underscores, or both.

        Raises TypeError if `config` is no mapping; ConfigError for an unknown or malformed setting, for one given
        twice, and for settings that contradict each other; also for certificates and keys that cannot be read.
        """
        values: dict[str, Any] = {}
        for given, value in given_settings(config, keywords):
            name = _field_name(given)
            if name in values:
                raise ConfigError(f"{dotted(name)} is given twice")
            values[name] = _parse(name, value)
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is missing: name at least one broker as host:port")
        if values.get("group_id") is None:
            if values.get("enable_auto_commit"):
                raise ConfigError("enable.auto.commit=true needs a group.id to commit under")
            values["enable_auto_commit"] = False
            if values.get("enable_parallel_rebalance"):
                raise ConfigError("enable.parallel.rebalance=true needs a group.id: its ranges are committed")
        _check_group(values)
        made = cls(**values)
        check_security(made)
        return made


# Each group protocol has settings that mean nothing to the other: there the coordinator's settings decide.
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
        raise ConfigError("heartbeat.interval.ms must be below session.timeout.ms, usually a third of it")


_FIELDS = {field.name: field for field in dataclasses.fields(ConsumerConfig)}

# Settings of other clients that have no meaning here, with what to do instead.
_FOREIGN = {
    "key_deserializer": "records carry bytes: decode them in your code",
    "value_deserializer": "records carry bytes: decode them in your code",
    "interceptor_classes": "there are no interceptors: wrap poll() instead",
    "metric_reporters": "call metrics() instead",
    "metadata_recovery_rebootstrap_trigger_ms": "bootstrap.servers are asked whenever no known broker answers",
    **FOREIGN,
}


def _field_name(given: Any) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"a setting's name must be a string, not {given!r}")
    name = given.strip().replace(".", "_")
    name = SYNONYMS.get(name, name)
    if name in _FIELDS:
        return name
    if name in _FOREIGN:
        raise ConfigError(f"{given} is not a setting here: {_FOREIGN[name]}")
    close = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.6)
    hint = f"did you mean {dotted(close[0])}?" if close else "see docs/configuration.md for all of them"
    raise ConfigError(f"unknown setting {given}: {hint}")


def _parse(name: str, value: Any) -> Any:
    metadata = _FIELDS[name].metadata
    try:
        return metadata["parse"](value)
    except (ValueError, TypeError) as error:
        given = "the value given" if metadata["secret"] else shown(value)
        raise ConfigError(f"{dotted(name)}={given}: {error}") from None
