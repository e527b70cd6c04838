"""The same rows, written by Spark's own sink and by headrace in one session of PySpark 4.2."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.brokers.admin import Admin
from support.brokers.produce import Outgoing, write
from support.brokers.topic_contents import oracle_rows
from support.programs import spark_compare_sinks
from support.spark.peer import run_beside_jvm

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
PARTITIONS = 3


@pytest.fixture(scope="module")
def topics(admin: Admin) -> dict[str, str]:
    return {sink: admin.create(f"by-{sink}", PARTITIONS) for sink in spark_compare_sinks.SINKS}


@pytest.fixture(scope="module")
def found(topics: dict[str, str], admin: Admin, servers: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = admin.create("written-twice", PARTITIONS)
    records = [Outgoing(b"%d" % n, b"key", n % PARTITIONS, 0, [("n", b"%d" % n), ("", None)]) for n in range(300)]
    write(servers, source, records)
    job = {
        "servers": servers,
        "directory": str(tmp_path_factory.mktemp("sinks")),
        "topics": topics,
        "source": source,
    }
    return run_beside_jvm(spark_compare_sinks, job)


def test_both_sinks_write_the_same_records(found: Any, topics: dict[str, str], servers: str) -> None:
    written = {
        sink: Counter(
            (row.partition if row.key or row.headers else None, row.key, row.value, row.headers)
            for row in oracle_rows(servers, topic, PARTITIONS)
        )
        for sink, topic in topics.items()
    }
    assert written["headrace"] == written["kafka"]
    assert written["kafka"].total() == 300 * (len(spark_compare_sinks.COLUMNS) + 1)


def test_both_sinks_refuse_the_same(found: dict[str, Any]) -> None:
    assert found["refusals"] == {name: [True, True] for name in spark_compare_sinks.REFUSED}
