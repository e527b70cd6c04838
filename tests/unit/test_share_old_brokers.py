"""Brokers without share groups, or without the record limit: the first poll says what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import AsyncShareConsumer
from headrace.aio.share_run import ShareRun, ShareRunSettings
from headrace.errors import UnsupportedVersionError
from headrace.protocol.messages import APIS, METADATA, SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from headrace.records import Records, decode
from support.batches import Entry, encode_batch
from support.fake_broker import FakeBroker, Link, answer, api_versions, run

SHARES = (SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE)
BEFORE = {api.key: (api.lowest, api.highest) for api in APIS if api not in SHARES}
KAFKA_4_0 = BEFORE | {76: (0, 0), 78: (0, 0), 79: (0, 0)}
KAFKA_4_1 = BEFORE | {76: (1, 1), 78: (1, 1), 79: (1, 1)}


async def serve(broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    async with asyncio.TaskGroup() as links:
        while True:
            links.create_task(_serve(await broker.accept(), broker, ranges))


async def _serve(link: Link, broker: FakeBroker, ranges: dict[int, tuple[int, int]]) -> None:
    try:
        while True:
            request = await link.receive()
            if request.api_key == METADATA.key:
                brokers = [{"node_id": 1, "host": broker.host, "port": broker.port, "rack": None}]
                fields = {"throttle_time": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": ()}
                await link.reply(request, answer(METADATA, request.version, error_code=0, **fields))
            else:
                await link.reply(request, api_versions(request.version, ranges))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass


def first_poll(ranges: dict[int, tuple[int, int]], **settings: Any) -> None:
    async def work() -> None:
        async with FakeBroker() as broker:
            serving = asyncio.create_task(serve(broker, ranges))
            try:
                async with AsyncShareConsumer(bootstrap_servers=broker.name, group_id="g", **settings) as consumer:
                    consumer.subscribe(["t"])
                    await consumer.poll(10.0)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    run(work())


@pytest.mark.parametrize("ranges", [BEFORE, KAFKA_4_0])
def test_no_share_groups(ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"ShareFetch.*share groups need Apache Kafka 4\.1"):
        first_poll(ranges)


@pytest.mark.parametrize(("name", "value"), [("share_acquire_mode", "record_limit"), ("renew", "auto")])
def test_no_record_limit_and_no_renewals(name: str, value: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=rf"{value} needs ShareFetch version 2 .*Kafka 4\.2"):
        first_poll(KAFKA_4_1, **{name: value})


def test_run_says_once_that_locks_are_not_renewed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = AsyncShareConsumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    consumer.subscribe(["t"])
    settings = ShareRunSettings(1, None, 0.1, 1.0, 1.0, None, 5.0)
    loop = ShareRun(consumer, lambda record: None, settings, lambda record: None)
    records = Records([decode(encode_batch([Entry(value=b"x")]), topic="t", partition=0, position=0)])
    loop._warn_of_locks(records)
    assert not caplog.messages
    monkeypatch.setattr(consumer._intake, "can_renew", lambda _: False)
    for _ in range(2):
        loop._warn_of_locks(records)
    (said,) = caplog.messages
    assert "cannot be renewed" in said
