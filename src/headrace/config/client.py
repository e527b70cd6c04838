"""The settings that every client has, and how settings are parsed.

Names have dots in a mapping, and underscores as keywords. Values may be strings, because files and Spark options
contain strings. Every setting is a field of the client's class or of a base class, which defines its type, default,
bounds and meaning. A comment explains each default that differs from Java's.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Self

from .._arguments import short_repr
from .._parsers import (
    REQUIRED,
    dotted,
    given_settings,
    one_of,
    parse_callback,
    parse_flag,
    parse_sent_text,
    setting,
    spelled_like,
    whole_number,
)
from .._security.settings import FOREIGN, SYNONYMS, SecuritySettings, check_security
from ..errors import ConfigError
from .other_clients import ALL_HINTS

# -- parsers of single settings; the common ones are in `_parsers.py` ------------------------------------------------


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
    # Brokers write addresses with a listener name, which may be custom: PLAINTEXT://host:9092.
    is_named = re.fullmatch(r"[A-Z][A-Z0-9_.-]*", listener) and listener not in ("HTTP", "HTTPS")
    if has_listener and not (is_named or listener.upper() in _PROTOCOLS):
        raise ValueError(f"{short_repr(text)} is a URL: give the broker as host:port")
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/]+)):(?P<port>[0-9]+)", address)
    if match is None:
        raise ValueError(f"{short_repr(text)} is not host:port")
    if len(match["port"]) > 5 or not 0 < int(match["port"]) < 65536:
        raise ValueError(f"the port of {short_repr(text)} is not between 1 and 65535")
    return match["v6"] or match["host"], int(match["port"])


# -- the settings ---------------------------------------------------------------------------------------------

_ms = whole_number(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientConfig(SecuritySettings):
    """The checked settings of any client. The settings for TLS and SASL are in `_security/settings.py`."""

    role: ClassVar[str] = "client"
    """What a user calls this client, for error messages."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "metric_reporters": "set on_stats, call metrics(), or use headrace.prometheus or headrace.otel",
        "stats_cb": "set on_stats instead",
        "metadata_recovery_rebootstrap_trigger_ms": (
            "the client connects to bootstrap.servers again as soon as no known broker can be reached"
        ),
        **FOREIGN,
        **ALL_HINTS,
    }
    """Settings of Java's client and librdkafka that headrace does not have, with what to do instead."""

    other_roles: ClassVar[Mapping[str, str]] = {}
    """Settings of headrace's other kinds of clients, with the role of such a client."""

    bootstrap_servers: tuple[tuple[str, int], ...] = setting(
        _servers, REQUIRED, "The brokers to connect to first, as host:port,host:port. They return the other brokers."
    )
    client_id: str = setting(parse_sent_text, "headrace", "The name of this client in the brokers' logs and quotas.")

    allow_auto_create_topics: bool = setting(
        parse_flag, True, "Let the broker create an unknown topic when this client requests its metadata."
    )
    metadata_max_age_ms: int = setting(_ms, 300_000, "Cluster metadata is refreshed when it is older than this.")
    metadata_recovery_strategy: str = setting(
        one_of("rebootstrap", "none"),
        "rebootstrap",
        "When no known broker can be reached: connect to bootstrap.servers again (rebootstrap), or only retry the "
        "known brokers (none).",
    )
    request_timeout_ms: int = setting(whole_number(1), 30_000, "How long to wait for the response to one request.")
    default_api_timeout_ms: int = setting(whole_number(1), 60_000, "How long one call may take, including its retries.")
    retry_backoff_ms: int = setting(
        _ms, 100, "The first pause before a request is retried. It doubles up to retry.backoff.max.ms."
    )
    retry_backoff_max_ms: int = setting(_ms, 1_000, "The longest pause before a request is retried.")
    reconnect_backoff_ms: int = setting(
        _ms, 50, "The first pause before reconnecting to a broker. It doubles up to reconnect.backoff.max.ms."
    )
    reconnect_backoff_max_ms: int = setting(_ms, 1_000, "The longest pause before reconnecting to a broker.")
    socket_connection_setup_timeout_ms: int = setting(
        whole_number(1),
        10_000,
        "How long the first attempt to connect may take. It doubles up to socket.connection.setup.timeout.max.ms.",
    )
    socket_connection_setup_timeout_max_ms: int = setting(
        whole_number(1), 30_000, "The longest time that an attempt to connect may take."
    )
    connections_max_idle_ms: int = setting(
        whole_number(-1), 540_000, "Idle connections are closed after this time. -1 means never."
    )
    # Java sets 128 and 64 KiB. A fixed size disables the kernel's automatic tuning, and a window of 64 KiB limits a
    # link with a long round-trip time to 64 KiB per round trip.
    send_buffer_bytes: int = setting(
        whole_number(-1), -1, "The size of the socket's send buffer. -1 leaves it to the operating system."
    )
    receive_buffer_bytes: int = setting(
        whole_number(-1), -1, "The size of the socket's receive buffer. -1 leaves it to the operating system."
    )
    receive_message_max_bytes: int = setting(
        whole_number(1000), 512 * 2**20, "The connection is closed when a response is larger than this."
    )

    on_stats: Any = setting(  # noqa: RUF009 - a function, which is not copied
        parse_callback,
        None,
        "A function that receives the result of metrics() every statistics.interval.ms, on a thread of its own.",
    )
    statistics_interval_ms: int = setting(_ms, 5_000, "The time between two calls of on.stats. 0 means never.")

    _given: ClassVar[frozenset[str]] = frozenset()

    def is_given(self, name: str) -> bool:
        """Whether the program has set this setting, even to its default."""
        return name in self._given

    def forget_functions(self) -> None:
        """The client holds them: its threads have these settings, and the functions may refer to the client."""
        for name in ("on_stats", "on_event"):
            if hasattr(self, name):
                object.__setattr__(self, name, None)

    def connection_settings(self) -> dict[str, Any]:
        """The settings with which a client of another kind connects to the same brokers in the same way."""
        fields = {field.name: field for field in dataclasses.fields(ClientConfig)}
        own = {"bootstrap_servers", "client_id", "allow_auto_create_topics", "on_stats", "statistics_interval_ms"}
        found = {name: getattr(self, name) for name in fields.keys() - own}
        return {
            "bootstrap.servers": [
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap_servers
            ],
            **{dotted(name): value for name, value in found.items() if value != fields[name].default},
        }

    @classmethod
    def _parse_values(cls, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The given settings by field name, with parsed values. Raises the errors of `parse`."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for given, value in given_settings(config, keywords):
            name = cls._field_name(given, fields)
            if name in values:
                raise ConfigError(f"{dotted(name)} is given twice")
            values[name] = parse_value(fields[name], value)
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is missing: give at least one broker as host:port")
        return values

    @classmethod
    def _field_name(cls, given: Any, fields: Collection[str]) -> str:
        if not isinstance(given, str):
            raise ConfigError(f"a setting's name must be a string, not {given!r}")
        name = given.strip().replace(".", "_")
        name = SYNONYMS.get(name, name)
        if name in fields:
            return name
        if name in cls.unsupported:
            raise ConfigError(f"{given} is not supported: {cls.unsupported[name]}")
        if name in cls.other_roles:
            raise ConfigError(f"{given} is a setting of a {cls.other_roles[name]}")
        close = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
        hint = f"did you mean {spelled_like(given, close[0])}?" if close else "no setting has a similar name"
        raise ConfigError(f"unknown setting {given}: {hint}")

    @classmethod
    def _create(cls, values: Mapping[str, Any]) -> Self:
        """Raises ConfigError if the security settings contradict each other, or if files cannot be read."""
        made = cls(**values)
        object.__setattr__(made, "_given", frozenset(values))
        check_security(made)
        return made


def parse_value(field: dataclasses.Field[Any], value: Any) -> Any:
    """Raises ConfigError, which does not contain the value of a secret."""
    try:
        return field.metadata["parse"](value)
    except (ValueError, TypeError) as error:
        given = "(secret)" if field.metadata["secret"] else short_repr(value)
        raise ConfigError(f"{dotted(field.name)}={given}: {error}") from None
