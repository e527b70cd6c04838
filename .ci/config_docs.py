"""Generates docs/configuration.md from the settings in the code. A test checks that the file is up to date.

python .ci/config_docs.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from headrace._security.settings import FIELDS, SYNONYMS
from headrace.config.client import ClientConfig
from headrace.config.consumer import ConsumerConfig, dotted
from headrace.config.producer import ProducerConfig
from headrace.config.share import OWN, REFUSED

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

Settings have the names of Java's clients and librdkafka. Write them with dots in a mapping (`{"group.id": "g"}`), with
underscores as keywords (`group_id="g"`), or both. Values may be strings. If Java's clients have a setting, its default
is the same here, except for `client.id`, `send.buffer.bytes`, `receive.buffer.bytes` and `sasl.kerberos.service.name`.
An unknown name raises a `ConfigError` that suggests a similar one. `.ci/config_docs.py` generates this page from the
code.
"""

TABLE = """
| setting | type | default | description |
|---|---|---|---|
"""

CLIENT_HEAD = """
## All clients

Consumers, share consumers and producers have these settings, and those for [security](#security).
"""

CONSUMER_HEAD = """
## Consumer
"""

PRODUCER_HEAD = """
## Producer
"""

SECURITY_HEAD = """
## Security

All clients have these settings. [Security](security.md) shows how to combine them.
"""
SYNONYMS_HEAD = """
These names from other clients are accepted too:

| name | setting |
|---|---|
"""

SHARE_HEAD = """
## Share consumer

`ShareConsumer` and `AsyncShareConsumer` have the settings of a consumer, require a `group.id`, and also have these:
"""
SHARE_REFUSED = """
They reject these settings:

| setting | reason |
|---|---|
"""


def render() -> str:
    client = {field.name for field in dataclasses.fields(ClientConfig)}
    parts = (
        (HEAD, []),
        (CLIENT_HEAD + TABLE, _rows(ClientConfig, FIELDS.keys())),
        (CONSUMER_HEAD + TABLE, _rows(ConsumerConfig, client)),
        (SHARE_HEAD + TABLE, _share_rows()),
        (SHARE_REFUSED, [f"| `{dotted(name)}` | {reason} |" for name, reason in REFUSED.items()]),
        (PRODUCER_HEAD + TABLE, _rows(ProducerConfig, client)),
        (SECURITY_HEAD + TABLE, [_row(field) for field in FIELDS.values()]),
        (SYNONYMS_HEAD, [f"| `{dotted(other)}` | `{dotted(name)}` |" for other, name in SYNONYMS.items()]),
    )
    return "".join(head + "".join(f"{line}\n" for line in lines) for head, lines in parts)


def _rows(kind: type[ClientConfig], without: Collection[str]) -> list[str]:
    return [_row(field) for field in dataclasses.fields(kind) if field.name not in without]


def _row(field: dataclasses.Field[object]) -> str:
    required = field.default is dataclasses.MISSING
    default = "required" if required else "none" if field.default in (None, "") else f"`{_shown(field.default)}`"
    return f"| `{dotted(field.name)}` | {_type(field)} | {default} | {field.metadata['meaning']} |"


_TYPES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def _type(field: dataclasses.Field[object]) -> str:
    """As a user would say it: the parsers take text for all of them."""
    name = str(field.type).removesuffix(" | None")
    return _TYPES.get(name) or ("list" if name.startswith("tuple") else "object")


def _share_rows() -> list[str]:
    return [f"| `{dotted(name)}` | text | `{choice.words[0]}` | {choice.meaning} |" for name, choice in OWN.items()]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(render())
