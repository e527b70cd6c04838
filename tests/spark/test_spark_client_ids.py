"""Queries of one group have distinct client ids. No Spark session runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace._aio.admin import AsyncAdmin
from headrace.spark.source import HeadraceSource
from support.brokers.admin import Admin, unique
from support.harness.waiting import wait_for
from support.spark.readers import Run

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_queries_of_one_group_have_distinct_client_ids(servers: str, admin: Admin, protocol: str) -> None:
    """`headrace lag` and `kafka-consumer-groups` show it for each partition, and the query's progress contains it."""
    topic, group = admin.create("told-apart", 2), unique("told-apart")
    given = {"subscribe": topic, "group.membership": "true", "kafka.group.id": group, "kafka.group.protocol": protocol}
    queries = [Run(servers, given), Run(servers, given), Run(servers, {**given, "kafka.client.id": "billing"})]
    try:
        for query in queries:
            query.begin()
            query.trigger()
        shown: list[Any] = [query.reader.reportLatestOffset() for query in queries]
        names = {each["headrace:client"] for each in shown}
        assert len(names) == 3
        assert "billing" in names
        assert sum(name.startswith("headrace-spark-") for name in names) == 2

        def seen() -> set[str]:
            for query in queries:
                query.trigger()
            return asyncio.run(clients(servers, group))

        wait_for("all members", lambda: seen() == names)
    finally:
        for query in queries:
            query.stop()


async def clients(servers: str, group: str) -> set[str]:
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        found = await admin.describe_group(group)
    return set() if found is None else {member.client_id for member in found.members}


def test_queries_of_one_share_group_have_distinct_client_ids(servers: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "t", "share.group.id": "s"}
    names = set()
    for _ in range(2):
        source = HeadraceSource(given)
        shown = source.streamReader(source.schema()).reportLatestOffset()
        assert shown is not None
        names.add(shown["headrace:client"])
    assert len(names) == 2
