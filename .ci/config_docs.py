"""Writes docs/configuration.md from the settings in the code; a test checks that it was not forgotten.

python .ci/config_docs.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headrace.config import ConsumerConfig, dotted
from headrace.share_config import OWN, REFUSED

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"

HEAD = """\
# Settings

Names are Kafka's: dotted in a mapping (`{"group.id": "g"}`) or with underscores as keywords (`group_id="g"`), or both
together. Values may be strings. Defaults are Java's unless the meaning says otherwise. Unknown names are refused, with
a suggestion. This page is made from the code by `.ci/config_docs.py`.

| setting | default | meaning |
|---|---|---|
"""

SHARE_HEAD = """
## Share consumers

`ShareConsumer` and `AsyncShareConsumer` have these besides, and need a `group.id`:

| setting | default | meaning |
|---|---|---|
"""
SHARE_REFUSED = """
They refuse these:

| setting | it |
|---|---|
"""


def render() -> str:
    rows = []
    for field in dataclasses.fields(ConsumerConfig):
        required = field.default is dataclasses.MISSING
        default = "required" if required else "none" if field.default in (None, "") else f"`{_shown(field.default)}`"
        rows.append(f"| `{dotted(field.name)}` | {default} | {field.metadata['meaning']} |")
    return HEAD + "\n".join(rows) + "\n" + _share_page()


def _share_page() -> str:
    own = [f"| `{dotted(name)}` | `{choice.words[0]}` | {choice.meaning} |" for name, choice in OWN.items()]
    refused = [f"| `{dotted(name)}` | {reason} |" for name, reason in REFUSED.items()]
    return SHARE_HEAD + "\n".join(own) + "\n" + SHARE_REFUSED + "\n".join(refused) + "\n"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(render())
