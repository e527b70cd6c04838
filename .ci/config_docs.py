"""Generates docs/configuration.md from the settings in the code. A test checks that the file is up to date.

python .ci/config_docs.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headrace._security.settings import FIELDS, SYNONYMS
from headrace.config.consumer import ConsumerConfig, dotted
from headrace.config.share import OWN, REFUSED

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

Settings have Kafka's names. Write them with dots in a mapping (`{"group.id": "g"}`), with underscores as keywords
(`group_id="g"`), or both. Values may be strings. Defaults are Java's unless the description says otherwise. An unknown
name raises a `ConfigError` that suggests a similar one. `.ci/config_docs.py` generates this page from the code.

| setting | type | default | description |
|---|---|---|---|
"""

SECURITY_HEAD = """
## Security

All consumers have these settings. [Security](security.md) shows how to combine them.

| setting | type | default | description |
|---|---|---|---|
"""
SYNONYMS_HEAD = """
These names from other clients are accepted too:

| name | setting |
|---|---|
"""

SHARE_HEAD = """
## Share consumers

`ShareConsumer` and `AsyncShareConsumer` require a `group.id` and also have these settings:

| setting | type | default | description |
|---|---|---|---|
"""
SHARE_REFUSED = """
They reject these settings:

| setting | reason |
|---|---|
"""


def render() -> str:
    fields = dataclasses.fields(ConsumerConfig)
    rows = [_row(field) for field in fields if field.name not in FIELDS]
    security = [_row(field) for field in fields if field.name in FIELDS]
    others = [f"| `{dotted(other)}` | `{dotted(name)}` |" for other, name in SYNONYMS.items()]
    pages = (HEAD, rows), (SECURITY_HEAD, security), (SYNONYMS_HEAD, others)
    return "".join(head + "\n".join(lines) + "\n" for head, lines in pages) + _share_page()


def _row(field: dataclasses.Field[object]) -> str:
    required = field.default is dataclasses.MISSING
    default = "required" if required else "none" if field.default in (None, "") else f"`{_shown(field.default)}`"
    return f"| `{dotted(field.name)}` | {_type(field)} | {default} | {field.metadata['meaning']} |"


_TYPES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def _type(field: dataclasses.Field[object]) -> str:
    """As a user would say it: the parsers take text for all of them."""
    name = str(field.type).removesuffix(" | None")
    return _TYPES.get(name) or ("list" if name.startswith("tuple") else "object")


def _share_page() -> str:
    own = [f"| `{dotted(name)}` | text | `{choice.words[0]}` | {choice.meaning} |" for name, choice in OWN.items()]
    refused = [f"| `{dotted(name)}` | {reason} |" for name, reason in REFUSED.items()]
    return SHARE_HEAD + "\n".join(own) + "\n" + SHARE_REFUSED + "\n".join(refused) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(render())
