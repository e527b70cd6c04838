"""The newest records of a topic, as the page shows them. `test_cli_typed_values.py` has those of a registry."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace import Producer
from headrace.errors import HeadraceError
from headrace.ui.records import RecordReader
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, write


def newest(servers: str, topic: str, count: int = 20) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        return await RecordReader({"bootstrap.servers": servers}).newest(topic, count)

    return asyncio.run(ask())


def test_the_newest_records_of_all_partitions_come_first(servers: str, admin: Admin) -> None:
    topic = admin.create("newest", 3)
    at = round(time.time() * 1000) - 60_000
    write(servers, topic, [Outgoing(b"%d" % n, partition=n % 3, timestamp=at + n) for n in range(30)])
    found = newest(servers, topic, 10)
    assert [it["value"]["text"] for it in found] == [str(number) for number in range(29, 19, -1)]
    assert (found[0]["partition"], found[0]["offset"], found[0]["at"]) == (2, 9, at + 29)


def test_keys_values_and_headers_are_shown_as_text_or_hexadecimal(servers: str, admin: Admin) -> None:
    topic = admin.create("shown")
    headers = [("trace", b"1"), ("none", None), ("raw", b"\xff\x00")]
    at = round(time.time() * 1000)  # retention would delete older ones at any time
    write(
        servers,
        topic,
        [
            Outgoing("grün <b>".encode(), key=b"k", timestamp=at + 1, headers=headers),
            Outgoing(None, key=b"\xff\xfe", timestamp=at + 2),
            Outgoing(b"x" * 10_000, timestamp=at + 3),
        ],
    )
    long, null, text = newest(servers, topic)
    assert text["value"] == {"text": "grün <b>", "bytes": 9}
    assert text["headers"] == [
        ["trace", {"text": "1", "bytes": 1}],
        ["none", None],
        ["raw", {"text": "ff 00", "bytes": 2, "format": "hex"}],
    ]
    assert (null["key"], null["value"]) == ({"text": "ff fe", "bytes": 2, "format": "hex"}, None)
    assert (long["value"]["bytes"], long["value"]["text"]) == (10_000, "x" * 4096 + "…")


def test_a_topic_that_ends_with_a_transaction_marker_is_read_at_once(
    servers: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.ui.records._WITHIN", 60.0)
    topic = admin.create("marked")
    with Producer(bootstrap_servers=servers, transactional_id=unique("tx")) as producer, producer.transaction():
        producer.send(topic, b"last")
    admin.wait_end(topic, 2)
    begun = time.monotonic()
    assert [it["value"]["text"] for it in newest(servers, topic)] == ["last"]
    assert time.monotonic() - begun < 30


def test_a_topic_without_records_is_empty(servers: str, admin: Admin) -> None:
    assert newest(servers, admin.create("empty", 2)) == []


def test_a_topic_that_does_not_exist_is_an_error_and_not_created(servers: str, admin: Admin) -> None:
    name = unique("missing")
    with pytest.raises(HeadraceError, match=f"topic '{name}' does not exist"):
        newest(servers, name)
    assert not admin.is_there(name)
