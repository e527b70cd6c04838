"""The options of Spark's own Kafka sink, with the same checks, and those of exactly-once writes.

Names are case-insensitive. An invalid option raises OptionError before a task starts. Options of the source, and
settings that only consumers or the JVM connector have, are accepted without effect: a table has one set of options for
both.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping

from ...config.consumer import dotted
from ...config.producer import ProducerConfig
from ...errors import ConfigError
from .consumer import CONSUMER_SETTINGS, DEFAULT_CLIENT_ID, SECURITY_SETTINGS
from .parsers import (
    FORMAT_OPTIONS,
    IGNORED_OPTIONS,
    KNOWN_OPTIONS,
    SINK_OPTIONS,
    OptionError,
    lowercase_names,
    parse_boolean,
    parse_integer,
)

_PRODUCER_SETTINGS = {dotted(field.name) for field in dataclasses.fields(ProducerConfig)}
_REJECTED = {
    "key.serializer": "use key.format, or convert the column key to a string or binary in the query",
    "value.serializer": "use value.format, or convert the column value to a string or binary in the query",
    "transactional.id": "use exactlyOnce=true and sinkId, and the sink chooses the ids of its transactions",
    "transaction.two.phase.commit.enable": "use exactlyOnce=true and sinkId",
    "interceptor.classes": "there are no interceptors",
}
_NAMES = {name.lower(): name for name in (*SINK_OPTIONS, "includeHeaders", *FORMAT_OPTIONS)}
# The id is part of transactional ids, and of a regular expression that finds them.
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ID_CHARACTERS = "letters, digits, '.', '_' and '-', at most 100 of them"


@dataclasses.dataclass(frozen=True)
class SinkOptions:
    """All of them, checked. Picklable: Spark sends it to executors."""

    topic: str | None
    sink_id: str | None  # None: at least once
    decision_topic: str | None
    batch_id: int | None  # in foreachBatch: the batch that a job writes
    first_batch_id: int | None  # the user knows that the batches before need no decision
    settings: Mapping[str, str] = dataclasses.field(repr=False)  # of the producers, including secrets

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises OptionError."""
        options = lowercase_names(given)
        _check_names(options)
        topic = options.get("topic")
        if topic is not None and not topic.strip():
            raise OptionError("The option topic is empty. Name a topic, or remove it and use a column topic")
        parse_boolean(options, "includeHeaders")  # a column headers is always written, as by Spark's sink
        sink_id = _parse_sink_id(options)
        return cls(
            topic=None if topic is None else topic.strip(),
            sink_id=sink_id,
            decision_topic=(options.get("decisiontopic") or "").strip() or None,
            batch_id=_parse_batch(options, "batchId"),
            first_batch_id=_parse_batch(options, "firstBatchId"),
            settings=_producer_settings(options, is_exactly_once=sink_id is not None),
        )


def _check_names(options: Mapping[str, str]) -> None:
    """Raises OptionError for a name that is similar to a known one, and for a producer's setting without its prefix."""
    for name in options:
        is_known = name in _NAMES or name in KNOWN_OPTIONS or name in IGNORED_OPTIONS or name.startswith("kafka.")
        if is_known:
            continue
        if name in _PRODUCER_SETTINGS or name in SECURITY_SETTINGS:
            raise OptionError(
                f"Unknown option {name}: settings of the producer have the prefix kafka., use kafka.{name}"
            )
        close = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.8)
        if close:
            raise OptionError(f"Unknown option {name}: did you mean {_NAMES[close[0]]}?")


def _parse_sink_id(options: Mapping[str, str]) -> str | None:
    """The id if writes are exactly once, else None."""
    is_exactly_once = parse_boolean(options, "exactlyOnce")
    sink_id = options.get("sinkid", "").strip()
    if not is_exactly_once:
        for name in ("sinkid", "decisiontopic", "batchid", "firstbatchid"):
            if name in options:
                raise OptionError(f"{_NAMES[name]} is for exactly-once writes only. Set exactlyOnce=true, or remove it")
        return None
    if not sink_id:
        raise OptionError(
            "exactlyOnce=true needs a sinkId: a name that belongs to this query only and stays the same when the query "
            "restarts"
        )
    if not _SINK_ID.fullmatch(sink_id):
        raise OptionError(f"sinkId={sink_id!r} can only have {_ID_CHARACTERS}")
    return sink_id


def _parse_batch(options: Mapping[str, str], name: str) -> int | None:
    return parse_integer(options[name.lower()], name) if name.lower() in options else None


def _producer_settings(options: Mapping[str, str], *, is_exactly_once: bool) -> dict[str, str]:
    settings: dict[str, str] = {}
    for option, value in options.items():
        if not option.startswith("kafka."):
            continue
        name = option.removeprefix("kafka.")
        if name in _REJECTED:
            raise OptionError(f"kafka.{name} is not supported: {_REJECTED[name]}")
        if name in _PRODUCER_SETTINGS or name in SECURITY_SETTINGS or _is_unsupported(name):
            settings[name] = value
            continue
        if name in CONSUMER_SETTINGS:
            continue
        close = difflib.get_close_matches(name, _PRODUCER_SETTINGS, n=1, cutoff=0.9)
        if close:
            raise OptionError(f"Unknown option kafka.{name}: did you mean kafka.{close[0]}?")
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("The option kafka.bootstrap.servers is missing. Set it to host:port,host:port")
    settings["client.id"] = settings.get("client.id", DEFAULT_CLIENT_ID)
    try:
        ProducerConfig.parse({**settings, **({"transactional.id": "sink"} if is_exactly_once else {})})
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None
    return settings


def _is_unsupported(name: str) -> bool:
    """Whether a producer rejects this setting with an alternative."""
    return name.replace(".", "_") in ProducerConfig.unsupported


def unused_sink_options(given: Mapping[str, str]) -> list[str]:
    """Unknown options, which have no effect. Spark's own, and those of the source, are not listed."""
    found = []
    for name in lowercase_names(given):
        setting = name.removeprefix("kafka.")
        if name == setting:
            is_known = name in _NAMES or name in IGNORED_OPTIONS or name in KNOWN_OPTIONS
        else:
            is_known = setting in _PRODUCER_SETTINGS or setting in SECURITY_SETTINGS or setting in CONSUMER_SETTINGS
        if not is_known:
            found.append(name)
    return sorted(found)
