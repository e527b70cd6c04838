"""`headrace produce`: writes lines of text, or the output of `headrace tail --format json`, to a topic."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import json
import re
import sys
from collections import deque
from collections.abc import Collection
from typing import IO, TYPE_CHECKING, Any

import click

from ..errors import HeadraceError, KafkaError
from .commands import command
from .connection_options import Settings, client_settings, cluster_options, format_option, name_and_value, with_cluster
from .formatting import records, say
from .option_types import WholeNumber
from .typed_values import TypedFields, encoder, typed_options

if TYPE_CHECKING:
    from .._record_batch import Delivery

_LONGEST_NAME = 249
_NUMBERS = {"timestamp": 2**63, "partition": 2**31}
"""The numeric fields of a record and their exclusive limits. -1, as `headrace tail` writes it, means none."""


@command(
    epilog="""\b
Examples:
  echo hello | headrace produce -t greetings --create
  headrace produce -t orders -K : orders.txt       one key:value per line
  headrace produce -t orders -H source=shell < orders.txt
  echo '{"road": "A1"}' | headrace produce -t roads --value avro --registry http://localhost:8081
  headrace topics --create -t copy -p 3            as many partitions as orders has
  headrace tail -t orders -o beginning -e --format json | headrace produce -t copy --format json
"""
)
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic to write to.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist, with the brokers' defaults.")
@click.option("-p", "--partition", type=WholeNumber(0), help="Write to this partition.  [default: by key]")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="The separator of key and value in a line.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress the records.",
)
@format_option("text", "json")
@typed_options
@cluster_options
def produce(
    settings: Settings,
    timeout: float,
    files: tuple[IO[bytes], ...],
    topic: str,
    create: bool,
    partition: int | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    compression: str,
    form: str,
    typed: TypedFields,
) -> None:
    """Write the lines of FILES, or of standard input, to a topic: one record per line.

    With --format json a line is an object with value, and optionally key, headers (an object, or pairs), timestamp
    (milliseconds) and partition. -C takes the settings of a producer.

    --value avro encodes values, which are then JSON, with the latest schema of the subject TOPIC-value in a registry;
    --key avro encodes keys with that of TOPIC-key.

    A topic that does not exist is created with --create. Without it, the command asks on a terminal and otherwise
    fails.
    """
    if form == "json" and key_delimiter:
        raise click.UsageError("-K needs --format text: with --format json, the key is part of the line")
    _check_name(topic)
    always = [(name, value.encode()) for name, value in (name_and_value(text, "-H") for text in headers)]
    encode = encoder(typed, topic) if typed else None
    writer = _TopicWriter(with_cluster(settings), topic, timeout, compression, create)
    if not files and sys.stdin.isatty():
        say("reading lines from the terminal: Ctrl-D ends")
    read = functools.partial(_read_json, as_json=typed.names) if form == "json" else _read_text
    try:
        for source in files or (sys.stdin.buffer,):
            for number, line in enumerate(source, 1):
                where = f"{source.name}, line {number}"
                record = read(line, where, key_delimiter)
                if encode is not None:
                    encode(record, where)
                record["headers"] = [*record.get("headers", ()), *always]
                if partition is not None:
                    record["partition"] = partition
                writer.write(record, where)
    finally:
        written = writer.close(timeout)
        say(f"{records(written)} written to {topic}")
    writer.check()


def _check_name(topic: str) -> None:
    """Check the name here: for an invalid name, Kafka only reports an unknown topic."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", topic) or topic in (".", "..") or len(topic) > _LONGEST_NAME:
        raise click.BadParameter(
            f"{topic!r} is not a valid topic name: at most {_LONGEST_NAME} letters, digits, '.', '_' and '-' are "
            "allowed",
            param_hint="-t / --topic",
        )


def _common_settings(settings: Settings) -> Settings:
    """Without the settings that only producers have."""
    from .._security.settings import SYNONYMS
    from ..config.client import ClientConfig

    common = {field.name for field in dataclasses.fields(ClientConfig)} | SYNONYMS.keys()
    return {name: value for name, value in settings.items() if name.replace(".", "_") in common}


async def _exists(settings: Settings, topic: str) -> bool:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        return topic in await admin.topics([topic])


async def _create(settings: Settings, topic: str) -> None:
    from .._aio.admin import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        try:
            await admin.create_topic(topic)
        except KafkaError as error:
            if error.name != "TOPIC_ALREADY_EXISTS":  # another process created it
                raise


def _ask_whether_to_create(topic: str) -> None:
    """Raises HeadraceError if the user declines, or if there is no terminal: a misspelled name must not become a
    topic."""
    if sys.stdin.isatty() and click.confirm(f"There is no topic {topic!r}. Create it?", err=True):
        return
    raise HeadraceError(f"there is no topic {topic!r}: --create creates it, `headrace topics` lists those that exist")


class _TopicWriter:
    """A producer that reports the first record that could not be written."""

    def __init__(self, settings: Settings, topic: str, timeout: float, compression: str, create: bool) -> None:
        from ..sync.producer import Producer

        self._topic = topic
        self._failed: str | None = None
        self._written = 0
        self._waiting: deque[tuple[str, Delivery]] = deque()
        # Checks the settings. Connects for the first record: until then, no request creates the topic.
        self._producer = Producer({"client.id": "headrace-cli", "compression.type": compression, **settings})
        asking = client_settings(_common_settings(settings), timeout)
        if not asyncio.run(_exists(asking, topic)):
            if not create:
                _ask_whether_to_create(topic)
            asyncio.run(_create(asking, topic))
            say(f"created {topic}")

    def write(self, record: dict[str, Any], where: str) -> None:
        waiting = self._waiting
        while waiting and waiting[0][1].is_done:
            self._count(*waiting.popleft())
        self.check()
        try:
            waiting.append((where, self._producer.send(self._topic, **record)))
        except (HeadraceError, ValueError) as error:
            raise HeadraceError(f"{where}: the record cannot be written: {error}") from None

    def _count(self, where: str, delivery: Delivery) -> None:
        if delivery.error is None:
            self._written += 1
        elif self._failed is None:
            self._failed = f"{where}: the record was not written: {delivery.error}"

    def close(self, timeout: float) -> int:
        """Wait for the records in flight, as long as some of them are acknowledged. Returns the number of records that
        were written."""
        before, why = -1, ""
        while self._waiting and before != self._written:
            before = self._written
            try:
                self._producer.flush(timeout=timeout)
            except HeadraceError as error:  # the deliveries say what has failed
                why = "" if error.__cause__ is None else f": {error.__cause__}"
            waiting, self._waiting = self._waiting, deque()
            for where, delivery in waiting:
                if delivery.is_done:
                    self._count(where, delivery)
                else:
                    self._waiting.append((where, delivery))
        if self._waiting and self._failed is None:
            were = "was" if len(self._waiting) == 1 else "were"
            self._failed = f"{records(len(self._waiting))} {were} not acknowledged within {timeout:g} s{why}"
        with contextlib.suppress(HeadraceError):
            self._producer.close(timeout=0)
        return self._written

    def check(self) -> None:
        if self._failed is not None:
            raise HeadraceError(self._failed)


def _read_text(line: bytes, where: str, key_delimiter: str | None) -> dict[str, Any]:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if key_delimiter is None:
        return {"value": line}
    key, found, value = line.partition(key_delimiter.encode())
    if not found:
        raise HeadraceError(f"{where}: no {key_delimiter!r} between key and value")
    return {"key": key, "value": value}


def _read_json(line: bytes, where: str, key_delimiter: str | None, as_json: Collection[str] = ()) -> dict[str, Any]:
    """The record of a line. The fields `as_json` are JSON texts, to be encoded."""
    try:
        found = _parsed(line)
        if not isinstance(found, dict) or "value" not in found:
            raise ValueError("it must be an object with a value")
        record: dict[str, Any] = {
            name: _bytes(found.get(name)) if name not in as_json else _json_text(found.get(name))
            for name in ("key", "value")
        }
        record["headers"] = _headers(found.get("headers"))
        for name, limit in _NUMBERS.items():
            number = -1 if found.get(name) is None else found[name]
            if type(number) is not int or not -1 <= number < limit:
                raise ValueError(f"{json.dumps(number)} is not a valid {name}")
            if number >= 0:
                record[name] = number
        return record
    except (ValueError, TypeError) as error:
        raise HeadraceError(f"{where}: not a record in JSON: {error}") from None


def _parsed(line: bytes) -> Any:
    """Raises ValueError without a line number: that of the parser counts from this line."""
    try:
        return json.loads(line.rstrip(b"\r\n"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None


def _json_text(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value).encode()


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    """The headers from an object, or from a list of pairs, in which a name may repeat."""
    if isinstance(found, dict):
        found = [[name, value] for name, value in found.items()]
    if found is not None and not (isinstance(found, list) and all(_is_pair(it) for it in found)):
        raise ValueError("headers must be an object, or a list of pairs of name and value")
    return [(name, _bytes(value)) for name, value in found or ()]


def _is_pair(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2 and isinstance(found[0], str)


def _bytes(value: Any) -> bytes | None:
    """The bytes of a string, of null, or of {"base64": …}. Any other value is written as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value).encode()
