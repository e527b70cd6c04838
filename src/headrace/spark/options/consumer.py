"""The options `kafka.…`: settings of the consumers that a query uses to read, look up offsets and commit."""

from __future__ import annotations

import dataclasses
import difflib
import secrets
from collections.abc import Mapping

from ..._security.settings import FOREIGN, SYNONYMS
from ...config.consumer import ConsumerConfig, dotted
from ...errors import ConfigError
from .parsers import GROUP_OPTIONS, OptionError

DEFAULT_CLIENT_ID = "headrace-spark"
"""The client.id of a query's consumers, unless the user sets one."""
CONSUMER_SETTINGS = {dotted(field.name) for field in dataclasses.fields(ConsumerConfig)}
# Authentication settings are never ignored: names of other clients are understood, or rejected with an alternative.
SECURITY_SETTINGS = {dotted(name) for name in (*SYNONYMS, *FOREIGN)}
_REJECTED = {
    "auto.offset.reset": "use startingOffsets=earliest or latest",
    "key.deserializer": "use key.format, or cast keys in the query",
    "value.deserializer": "use value.format, or cast values in the query",
    "enable.auto.commit": "offsets are kept in the query's checkpoint",
    "interceptor.classes": "there are no interceptors",
}
MEMBER_SETTINGS = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
)
"""Settings of group members: only the driver's consumer uses them, with group.membership=true."""
_OWN_OPTIONS = {name.lower(): name for name in GROUP_OPTIONS}
UNUSED_SETTINGS = {
    *MEMBER_SETTINGS,
    "group.id",  # used by queries that commit or are members
    # The source decides these itself.
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "commit.mode",
    "exclude.internal.topics",
    "max.poll.records",
    "poll.drain.strategy",
    "revoke.mode",
}
"""Accepted, but not among the settings that all consumers of a query get."""


def consumer_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Raises OptionError. The names of `options` are in lower case."""
    settings: dict[str, str] = {}
    for option, value in options.items():
        if not option.startswith("kafka."):
            continue
        name = option.removeprefix("kafka.")
        if name in _REJECTED:
            raise OptionError(f"kafka.{name} is not supported: {_REJECTED[name]}")
        if own := _OWN_OPTIONS.get(name):
            raise OptionError(f"Unknown option kafka.{name}: it is an option of the source, use {own}")
        if name in UNUSED_SETTINGS:
            continue
        if name in CONSUMER_SETTINGS or name in SECURITY_SETTINGS:
            settings[name] = value
            continue
        close = difflib.get_close_matches(name, CONSUMER_SETTINGS, n=1, cutoff=0.9)
        if close:
            raise OptionError(f"Unknown option kafka.{name}: did you mean kafka.{close[0]}?")
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("The option kafka.bootstrap.servers is missing. Set it to host:port,host:port")
    settings["client.id"] = settings.get("client.id", DEFAULT_CLIENT_ID)
    check_settings(settings)
    return settings


def is_unknown_setting(option: str) -> bool:
    """Whether it is a `kafka.…` option that this consumer does not have, such as a setting of Java's client only."""
    name = option.removeprefix("kafka.")
    return name != option and not (name in CONSUMER_SETTINGS or name in SECURITY_SETTINGS or name in UNUSED_SETTINGS)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raises OptionError."""
    try:
        ConsumerConfig.parse(settings)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None


def with_unique_client_id(settings: Mapping[str, str]) -> dict[str, str]:
    """For the member of a query: distinguishes several queries in one group, unless the user sets client.id."""
    is_default = settings["client.id"] == DEFAULT_CLIENT_ID
    return {**settings, **({"client.id": f"{DEFAULT_CLIENT_ID}-{secrets.token_hex(3)}"} if is_default else {})}
