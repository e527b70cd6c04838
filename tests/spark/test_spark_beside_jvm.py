"""The same topics, read by Spark's own connector and by headrace in one session of PySpark 4.2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import spark_peer
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.brokers.topic_contents import oracle_rows
from support.harness.waiting import wait_for
from support.programs import spark_compare
from support.spark.peer import run_beside_jvm

# The environment is created once, which takes a minute or two.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
REFUSED_BY_BOTH: dict[str, dict[str, str]] = {
    "nothing to read": {},
    "two strategies": {"subscribe": "TOPIC", "assign": '{"TOPIC":[0]}'},
    "no topic": {"subscribe": " , "},
    "an empty pattern": {"subscribePattern": ""},
    "partitions that are no list": {"assign": '{"TOPIC":0}'},
    "latest as the start": {"subscribe": "TOPIC", "startingOffsets": "latest"},
    "earliest as the end": {"subscribe": "TOPIC", "endingOffsets": "earliest"},
    "-1 as a start": {"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":-1}}'},
    "-2 as an end": {"subscribe": "TOPIC", "endingOffsets": '{"TOPIC":{"0":-2}}'},
    "an end before the start": {
        "subscribe": "TOPIC",
        "startingOffsets": '{"TOPIC":{"0":5,"1":5,"2":3}}',
        "endingOffsets": '{"TOPIC":{"0":5,"1":4,"2":3}}',
    },
    "a time before the start": {
        "subscribe": "TOPIC",
        "startingOffsetsByTimestamp": '{"TOPIC":{"0":5,"1":5,"2":5}}',
        "endingOffsetsByTimestamp": '{"TOPIC":{"0":5,"1":4,"2":5}}',
    },
    "offsets that are no JSON": {"subscribe": "TOPIC", "startingOffsets": "{"},
    "a topic that is not there": {"subscribe": "nowhere"},
    "a commit": {"subscribe": "TOPIC", "kafka.enable.auto.commit": "true"},
    "a reset": {"subscribe": "TOPIC", "kafka.auto.offset.reset": "latest"},
    "a deserializer": {"subscribe": "TOPIC", "kafka.value.deserializer": "x"},
    "an interceptor": {"subscribe": "TOPIC", "kafka.interceptor.classes": "x"},
    "no server": {"subscribe": "TOPIC", "kafka.bootstrap.servers": ""},
    "no task": {"subscribe": "TOPIC", "minPartitions": "0"},
}


@pytest.fixture(scope="module")
def topics(admin: Admin, servers: str) -> dict[str, str]:
    """Topics by purpose."""
    made = {codec: _with_everything(admin, servers, codec) for codec in CODECS}
    made["appended"] = admin.create("appended", 1, message_timestamp_type="LogAppendTime")
    write(servers, made["appended"], numbered(50))
    made["transactions"] = _transactions(admin, servers)
    made["compacted"] = _compacted(admin, servers)
    made["uneven"] = admin.create("uneven", 3)
    for number, count in enumerate((900, 90, 3)):
        write(servers, made["uneven"], numbered(count, number))
    made["empty"] = admin.create("empty")
    return made


def _with_everything(admin: Admin, servers: str, codec: str) -> str:
    topic = admin.create(f"compared-{codec}", 2, retention_ms=-1)
    records = [
        Outgoing(b"value", b"key", 0, 1_700_000_000_123, [("a", b"1"), ("a", None), ("b", b""), ("\u00e9", b"\xff")]),
        Outgoing(None, None, 0, 1_700_000_000_124),
        Outgoing(b"", b"", 1, 1),
        *(Outgoing(b"x" * size, b"%d" % size, 1, 1_700_000_001_000 + size) for size in (1, 100, 50_000)),
        *(Outgoing(b"%d" % n, None, n % 2, 1_700_000_002_000 + n, [("n", b"%d" % n)]) for n in range(500)),
    ]
    write(servers, topic, records, compression_codec=codec)
    return topic


def _transactions(admin: Admin, servers: str) -> str:
    topic = admin.create("transactions")
    writer = Writer(servers, transactional_id=unique("tx"))
    for commits in (True, False, True, False):
        writer.producer.begin_transaction()
        writer.send(topic, numbered(20))
        writer.flush()
        writer.producer.commit_transaction(30) if commits else writer.producer.abort_transaction(30)
    return topic


def _compacted(admin: Admin, servers: str) -> str:
    topic = admin.create("compacted", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001)
    for turn in range(4):
        write(servers, topic, [Outgoing(b"%d" % turn, b"key-%d" % key) for key in range(0, 200, turn + 1)])
    wrote = admin.bounds(topic)[1]

    def compacted() -> bool:
        # A record closes the active segment, which is never compacted.
        write(servers, topic, [Outgoing(b"tick", b"tick")])
        return len(oracle_rows(servers, topic)) < wrote * 2 // 3

    wait_for("compaction", compacted, 120.0, every=0.3)
    admin.configure(topic, cleanup_policy="delete", retention_ms=-1)  # so that the topic does not change any more
    return topic


def _reads(topics: dict[str, str]) -> dict[str, dict[str, str]]:
    uneven, none = topics["uneven"], topics["none"]
    return {
        "everything": {"subscribe": ", ".join(topics.values()), "includeHeaders": "true"},
        "committed only": {"subscribe": topics["transactions"], "kafka.isolation.level": "read_committed"},
        "by pattern": {"subscribePattern": f"{none[:-1]}.|{uneven}"},
        "assigned": {"assign": f'{{"{uneven}":[0,2]}}'},
        "offsets": {
            "subscribe": uneven,
            "startingOffsets": f'{{"{uneven}":{{"0":800,"1":-2,"2":1}}}}',
            "endingOffsets": f'{{"{uneven}":{{"0":-1,"1":10,"2":3}}}}',
        },
        "times": {"subscribe": none, "startingTimestamp": "1700000002100", "endingTimestamp": "1700000002400"},
        "times of each": {
            "subscribe": none,
            "startingOffsetsByTimestamp": f'{{"{none}":{{"0":1700000002100,"1":1700000002300}}}}',
            "endingOffsetsByTimestamp": f'{{"{none}":{{"0":1700000002200,"1":1800000000000}}}}',
        },
        "from the future": {
            "subscribe": none,
            "startingTimestamp": "1900000000000",
            "startingOffsetsByTimestampStrategy": "latest",
        },
        "at least so many tasks": {"subscribe": uneven, "minPartitions": "7"},
        "both bounds of tasks": {"subscribe": uneven, "maxRecordsPerPartition": "400", "minPartitions": "9"},
    }


def _streams(topics: dict[str, str]) -> dict[str, dict[str, str]]:
    shared = {"startingOffsets": "earliest", "maxOffsetsPerTriggerShares": "proportional"}
    return {
        "everything": {
            **shared,
            "subscribe": ",".join(topics.values()),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": "2000",
        },
        "odd logs": {
            **shared,
            "subscribe": f"{topics['transactions']},{topics['compacted']},{topics['uneven']}",
            "kafka.isolation.level": "read_committed",
            "maxOffsetsPerTrigger": "500",
            "minPartitions": "6",
        },
    }


@pytest.fixture(scope="module")
def found(topics: dict[str, str], admin: Admin, servers: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    refusals = json.dumps(REFUSED_BY_BOTH).replace("TOPIC", topics["uneven"])
    job = {
        "servers": servers,
        "directory": str(tmp_path_factory.mktemp("compared")),
        "reads": _reads(topics),
        "streams": _streams(topics),
        "refusals": json.loads(refusals),
        "handover": admin.create("handover", 2),
        "reused": {source: admin.create(f"reused-{source}", 2) for source in spark_compare.SOURCES},
    }
    return run_beside_jvm(spark_compare, job)


def test_the_comparison_runs_in_pyspark_4_2(found: dict[str, Any]) -> None:
    assert found["version"] == spark_peer.VERSION


def test_both_sources_read_the_same_rows(found: dict[str, Any]) -> None:
    different = {name: text for name, text in found["reads"].items() if not text.startswith("the same")}
    assert not different
    counts = {name: int(text.split()[2]) for name, text in found["reads"].items()}
    assert counts["everything"] > len(CODECS) * 506 + 80 + 993
    assert counts["committed only"] == 40
    assert counts["both bounds of tasks"] == 993
    assert counts["from the future"] == 0


def test_both_sources_plan_the_same_batches(found: dict[str, Any]) -> None:
    different = {name: text for name, text in found["streams"].items() if not text.startswith("the same")}
    assert not different
    assert "3 batches" in found["streams"]["everything"]


def test_each_source_resumes_the_other_s_checkpoint(found: dict[str, Any]) -> None:
    assert found["handovers"] == "every record once"


def test_both_sources_refuse_the_same_options(found: dict[str, Any]) -> None:
    assert found["refusals"] == {name: [True, True] for name in REFUSED_BY_BOTH}


def test_in_both_sources_each_action_reads_the_records_of_its_time(found: dict[str, Any]) -> None:
    uses = ("count", "filter", "same plan", "view", "union")
    assert found["reuse"] == {source: {use: [100, 150] for use in uses} for source in spark_compare.SOURCES}
