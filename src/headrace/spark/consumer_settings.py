"""The options `kafka.…`: settings of the consumers that read, ask and commit for a query."""

from __future__ import annotations

import dataclasses
import difflib
import secrets
from collections.abc import Mapping

from ..config import ConsumerConfig, dotted
from ..errors import ConfigError
from ..security.settings import FOREIGN, SYNONYMS
from ..sync import Consumer
from .option_values import OptionError

CLIENT = "headrace-spark"
"""The client.id of a query's consumers, unless the user gives one."""
SETTINGS = {dotted(field.name) for field in dataclasses.fields(ConsumerConfig)}
# How a client logs in is never passed over: other clients' names are understood, or refused with what to use instead.
SECURITY = {dotted(name) for name in (*SYNONYMS, *FOREIGN)}
_REFUSED = {
    "auto.offset.reset": "use startingOffsets=earliest or latest",
    "key.deserializer": "keys come as binary: cast them in the query",
    "value.deserializer": "values come as binary: cast them in the query",
    "enable.auto.commit": "offsets are kept in the query's checkpoint",
    "interceptor.classes": "there are no interceptors",
}
OF_MEMBERS = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
)
"""Of a group's member, so of the driver's consumer alone, if it is one."""
UNUSED = {
    *OF_MEMBERS,
    "group.id",  # of a group, if the query has to do with one
    # What this source decides itself.
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "commit.mode",
    "enable.parallel.rebalance",
    "exclude.internal.topics",
    "max.poll.records",
    "parallel.rebalance.backlog.share",
    "parallel.rebalance.min.lag",
    "poll.drain.strategy",
    "revoke.mode",
}
"""Accepted, and not among the settings that all consumers of a query have."""


def consumer_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Raises OptionError. The names of `options` are in lower case."""
    settings: dict[str, str] = {}
    for option, value in options.items():
        if not option.startswith("kafka."):
            continue
        name = option.removeprefix("kafka.")
        if name in _REFUSED:
            raise OptionError(f"kafka.{name} is not supported: {_REFUSED[name]}")
        if name in UNUSED:
            continue
        if name in SETTINGS or name in SECURITY:
            settings[name] = value
            continue
        close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.9)
        if close:
            raise OptionError(f"unknown option kafka.{name}: did you mean kafka.{close[0]}?")
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("the option kafka.bootstrap.servers must be given: host:port,host:port")
    settings["client.id"] = settings.get("client.id", CLIENT)
    check_settings(settings)
    return settings


def is_foreign(option: str) -> bool:
    """Whether it is a setting of Java's client that means nothing here."""
    name = option.removeprefix("kafka.")
    return name != option and not (name in SETTINGS or name in SECURITY or name in UNUSED)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raises OptionError."""
    try:
        ConsumerConfig.parse(settings)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None


def with_own_client(settings: Mapping[str, str]) -> dict[str, str]:
    """Of a query's member: several queries of one group are told apart by their client.id, unless the user gives it."""
    own = {"client.id": f"{CLIENT}-{secrets.token_hex(3)}"} if settings["client.id"] == CLIENT else {}
    return {**settings, **own}


def idle_consumer(settings: Mapping[str, str]) -> Consumer:
    """One that reads nothing and is a member of no group: it asks, or commits."""
    return Consumer(settings, enable_auto_commit=False, allow_auto_create_topics=False)
