"""Decisions of readers, with a real broker and without a Spark session, which is fast. Rare cases are here."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from headrace import Consumer, TopicPartition
from headrace.errors import ClosedError, RecordDecodeError
from headrace.spark.data_loss import DataLossError
from headrace.spark.driver.batch import BatchReader
from headrace.spark.formats import TypedColumns
from headrace.spark.offset_lookup import OffsetLookup
from headrace.spark.offset_range import OffsetRange
from headrace.spark.options.source import OptionError, SourceOptions
from headrace.spark.source import HeadraceSource
from headrace.spark.worker import reader as reading
from headrace.spark.worker.rows import RowBuilder
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.harness.waiting import wait_for
from support.spark.readers import Run, Runs
from support.spark.streams import grid

pytestmark = pytest.mark.timeout(300)

# All members leave properly, so no test waits for a session timeout.
FAST = {"kafka.heartbeat.interval.ms": 100, "kafka.session.timeout.ms": 30_000}
Make = Callable[..., Run]
COOPERATIVE = {"kafka.partition.assignment.strategy": "cooperative-sticky"}

OFFSETS = RowBuilder(StructType([StructField("offset", LongType())]), TypedColumns())


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("read", 2)
    write(servers, topic, [*numbered(100, 0), *numbered(100, 1)])
    return topic


@pytest.fixture
def run(servers: str, topic: str) -> Iterator[Runs]:
    runs = Runs(servers, topic)
    yield runs
    runs.stop()


@pytest.fixture
def member(run: Runs) -> Make:
    """Creates runs of queries that are members of one group."""
    group = unique("readers")
    return lambda checkpoint=None, **more: run(
        checkpoint, **{"group.membership": "true", "kafka.group.id": group, **FAST, **more}
    )


class TestMembersAndDataLoss:
    def test_a_recreated_topic_is_data_loss_for_a_member(
        self, member: Make, servers: str, admin: Admin, topic: str
    ) -> None:
        first = member()
        assert first.to_the_end() == grid(2, 100)
        first.stop()
        admin.remove(topic, again=2)
        write(servers, topic, numbered(5))
        failing = member(first.at)
        with pytest.raises(DataLossError, match="the topic was recreated"):
            failing.to_the_end()
        failing.stop()
        query = member(first.at, failOnDataLoss="false")
        assert query.to_the_end() == [(0, offset) for offset in range(5)]

    def test_a_deleted_topic_is_data_loss_for_a_member(
        self, member: Make, servers: str, admin: Admin, topic: str
    ) -> None:
        """The query is a member and still owns the partitions. The other topic keeps being consumed."""
        other = admin.create("stays")
        write(servers, other, numbered(5))
        fails, continues = (
            member(subscribe=f"{topic},{other}", failOnDataLoss=fails, kafka__group__id=unique("gone"))
            for fails in (True, False)
        )
        for each in (fails, continues):
            each.begin()
            _until_read(each, 205)
        admin.remove(topic)
        with pytest.raises(DataLossError, match="was deleted"):
            fails.trigger()
        write(servers, other, numbered(3))
        assert continues.trigger() == [(0, offset) for offset in range(5, 8)]

    def test_a_member_without_new_records_commits_the_offsets_of_its_checkpoint(
        self, member: Make, servers: str, topic: str
    ) -> None:
        """The query was killed before it could commit, and there are no new records."""
        query = member({topic: {"0": 100, "1": 100}})
        assert query.to_the_end() == []
        settings = query.reader._group_options.settings
        query.stop()
        with Consumer(bootstrap_servers=servers, group_id=settings["group.id"]) as consumer:
            found = consumer.committed([TopicPartition(topic, number) for number in range(2)])
        assert [each and each.offset for each in found.values()] == [100, 100]


def _until_read(query: Run, count: int) -> None:
    rows: list[tuple[int, int]] = []

    def read() -> bool:
        rows.extend(query.trigger() or [])
        return len(rows) >= count

    wait_for("its records", read, 60, every=0.05)


class TestMembers:
    def test_min_offsets_per_trigger_does_not_delay_newly_assigned_partitions(
        self, member: Make, servers: str, topic: str
    ) -> None:
        query = member(minOffsetsPerTrigger=1000, maxTriggerDelay="10m")
        with Consumer(bootstrap_servers=servers, group_id=query.reader._group_options.settings["group.id"]) as consumer:
            consumer.commit({TopicPartition(topic, number): 30 + number for number in range(2)})
        query.begin()
        query.reader._group.wait_for_assignment()
        query.reader._last_batch_at = query.reader._clock()  # as if a batch had just run
        for _ in range(3):
            query.trigger()
        assert query.at is not None
        assert [query.at[topic][number]["frontier"] for number in "01"] == [30, 31], (
            "the assigned partitions are in the checkpoint"
        )

    def test_available_now_waits_for_the_partitions_of_a_cooperative_group(
        self, member: Make, servers: str, topic: str
    ) -> None:
        """The first assignment of a new member is empty until others have revoked partitions."""
        query = member(**COOPERATIVE)
        settings = {name.removeprefix("kafka."): value for name, value in (FAST | COOPERATIVE).items()}
        group = query.reader._group_options.settings["group.id"]
        over = threading.Event()
        has_partitions = threading.Event()

        def be_a_member() -> None:
            with Consumer(settings, bootstrap_servers=servers, group_id=group, enable_auto_commit=False) as other:
                other.subscribe([topic])
                while not over.is_set():
                    other.poll(0.05)
                    if other.assignment():
                        has_partitions.set()

        other = threading.Thread(target=be_a_member)
        other.start()
        try:
            assert has_partitions.wait(60)
            assert len(query.to_the_end()) == 100
        finally:
            over.set()
            other.join()

    @pytest.mark.parametrize("change", [str.upper, lambda topic: topic[1:]])
    def test_a_member_s_pattern_may_match_a_part_of_the_name_and_have_flags(
        self, member: Make, topic: str, change: Callable[[str], str]
    ) -> None:
        assert member(subscribePattern=f"(?i){change(topic)}$").to_the_end() == grid(2, 100)

    def test_a_member_with_lanes_reads_the_newest_records_first(self, member: Make, servers: str, topic: str) -> None:
        """group.membership with enable.parallel.rebalance: the group assigns the partitions, both lanes are read."""
        lanes = {"enable.parallel.rebalance": "true", "maxOffsetsPerTrigger": 40}
        query = member({topic: {"0": 10, "1": 100}}, **lanes)
        query.begin(available_now=True)
        first = query.trigger()
        assert first is not None
        assert (0, 99) in first
        assert query.at is not None
        assert query.at[topic]["0"]["holes"]
        rest = query.to_the_end()
        assert sorted(first + rest) == [(0, offset) for offset in range(10, 100)]
        settings = query.reader._group_options.settings
        query.stop()
        with Consumer(bootstrap_servers=servers, group_id=settings["group.id"]) as consumer:
            found = consumer.committed([TopicPartition(topic, number) for number in range(2)])
        assert [each and each.offset for each in found.values()] == [100, 100]


class TestTheLeastOfABatch:
    def test_later_batches_wait_for_min_offsets_per_trigger_and_the_first_does_not(
        self, run: Runs, servers: str, topic: str
    ) -> None:
        """As in Spark. The progress shows the latest offsets while the query waits."""
        query = run(minOffsetsPerTrigger=1000, maxTriggerDelay="2s")
        now = [100.0]
        query.reader._clock = lambda: now[0]
        query.begin()
        assert query.trigger() == grid(2, 100)
        write(servers, topic, numbered(10, 1))
        now[0] += 1.9
        assert query.trigger() is None
        assert query.reader.reportLatestOffset() == {topic: {"0": 100, "1": 110}}
        now[0] += 0.2
        assert query.trigger() == [(1, offset) for offset in range(100, 110)]
        write(servers, topic, numbered(1000, 0))
        assert len(query.trigger() or []) == 1000

    def test_a_rerun_batch_fails_when_the_start_of_its_new_partition_is_deleted(
        self, run: Runs, admin: Admin, topic: str
    ) -> None:
        query, end = run({topic: {"0": 100}}), {topic: {"0": 100, "1": 100}}
        assert len(query.tasks(end)) == 1
        admin.delete_records(topic, 4, partition=1)
        with pytest.raises(DataLossError, match="its log begins at 4"):
            query.tasks(end)


class TestPatterns:
    def test_patterns_may_match_a_part_of_the_name_and_exclude_internal_topics(
        self, servers: str, admin: Admin, topic: str
    ) -> None:
        with Consumer(bootstrap_servers=servers, group_id=unique("any")) as consumer:
            consumer.commit({TopicPartition(topic, 0): 1})  # so that __consumer_offsets exists
            assert "__consumer_offsets" in consumer.list_topics()
        for pattern in (topic[1:-1], f"consumer_offsets|{topic}"):
            given = {"kafka.bootstrap.servers": servers, "subscribePattern": pattern}
            logs = OffsetLookup(SourceOptions.parse(given, streaming=True))
            try:
                assert topic in {tp.topic for tp in logs.existing_partitions()}
                assert "__consumer_offsets" not in {tp.topic for tp in logs.existing_partitions()}
                assert logs.existing_end_offsets() == logs.existing_end_offsets(), "also with known leaders"
            finally:
                logs.close()


class TestRangesThatAreNotThere:
    def test_an_ending_offset_beyond_the_log_is_data_loss(self, servers: str, topic: str) -> None:
        ends = f'{{"{topic}":{{"0":50,"1":120}}}}'
        with pytest.raises(DataLossError, match=r"should be read to offset 120, but its log ends at 100"):
            planned(servers, topic, endingOffsets=ends)
        assert planned(servers, topic, endingOffsets=ends, failOnDataLoss="false") == [(0, 0, 50), (1, 0, 100)]

    @pytest.mark.parametrize("fails", [True, False])
    def test_a_log_that_ends_inside_of_a_task_s_range_is_data_loss(
        self, servers: str, topic: str, fails: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For example after an unclean election since the batch was planned."""
        options = options_of(servers, topic, failOnDataLoss=fails)
        clock = itertools.count(step=1000)
        found: list[int] = []

        def read() -> None:
            wanted = OffsetRange(TopicPartition(topic, 0), 90, 120)
            for batch in reading.read_range(wanted, options, OFFSETS):
                found.extend(batch["offset"].to_pylist())
                if found[-1] == 99:  # all records are read: let time pass
                    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: next(clock)))

        if fails:
            with pytest.raises(DataLossError, match=r"ends at offset 100: the records from offset 100 to before 120"):
                read()
        else:
            read()
        assert found == list(range(90, 100))

    @pytest.mark.parametrize("fails", [True, False])
    def test_a_topic_deleted_before_its_task_is_data_loss(
        self, servers: str, admin: Admin, topic: str, fails: bool
    ) -> None:
        options = options_of(servers, topic, failOnDataLoss=fails, **{"kafkaConsumer.pollTimeoutMs": 300})
        wanted = OffsetRange(TopicPartition(topic, 0), 0, 100)
        admin.remove(topic)
        if fails:
            with pytest.raises(DataLossError, match="was deleted, and its records from offset"):
                rows(wanted, options)
        else:
            assert rows(wanted, options) == []

    def test_an_unreachable_broker_is_a_timeout_and_no_data_loss(
        self, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "_STALL_CHECK_TIMEOUT", 0.3)
        given = {"kafkaConsumer.pollTimeoutMs": 300, "kafka.default.api.timeout.ms": 300}
        options = options_of("localhost:9", topic, failOnDataLoss="false", **given)
        with pytest.raises(TimeoutError, match="Check that the leader of the partition is running"):
            rows(OffsetRange(TopicPartition(topic, 0), 0, 100), options)


def options_of(servers: str, topic: str, **given: Any) -> SourceOptions:
    named = {"kafka.bootstrap.servers": servers, "subscribe": topic, **given}
    return SourceOptions.parse({name: str(value) for name, value in named.items()}, streaming=True)


def planned(servers: str, topic: str, **given: Any) -> list[tuple[int, int, int]]:
    """The ranges that a batch query plans."""
    source = HeadraceSource({"kafka.bootstrap.servers": servers, "subscribe": topic, **given})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return [(task.value.tp.partition, task.value.start, task.value.end) for task in reader.partitions()]


def rows(wanted: OffsetRange, options: SourceOptions) -> list[int]:
    return [offset for batch in reading.read_range(wanted, options, OFFSETS) for offset in batch["offset"].to_pylist()]


class TestBatchTasks:
    """Tasks that are planned once and run later: Spark reuses them for all actions of a DataFrame."""

    def test_an_open_transaction_before_a_task_s_range_is_no_data_loss(
        self, servers: str, admin: Admin, topic: str
    ) -> None:
        writer = Writer(servers, transactional_id=unique("tx"))
        writer.producer.begin_transaction()
        writer.send(topic, numbered(5))
        writer.flush()
        starts = f'{{"{topic}":{{"0":102,"1":-2}}}}'
        query = BatchQuery(servers, topic, startingOffsets=starts, **{"kafka.isolation.level": "read_committed"})
        assert query.offsets(0) == []
        writer.producer.commit_transaction(30)
        admin.wait_end(topic, 106)
        assert query.offsets(0) == [102, 103, 104]

    def test_a_log_that_ends_before_a_task_s_range_is_data_loss(self, servers: str, admin: Admin, topic: str) -> None:
        starts = f'{{"{topic}":{{"0":60,"1":-2}}}}'
        query = BatchQuery(servers, topic, startingOffsets=starts)
        assert len(query.offsets(0)) == 40
        admin.remove(topic, again=2)
        write(servers, topic, numbered(5))
        with pytest.raises(DataLossError, match=r"should be read from offset 60, but its log ends at 5\."):
            query.offsets(0)

    def test_an_end_that_the_options_place_before_the_start_is_refused(
        self, servers: str, admin: Admin, topic: str
    ) -> None:
        """As in Spark: "resolved start offset greater than end offset (without latest)"."""
        starts = f'{{"{topic}":{{"0":60,"1":-2}}}}'
        with pytest.raises(OptionError, match=r"mean offset 60 of read-.*-0 as the start, and offset 0 as the end"):
            BatchQuery(servers, topic, startingOffsets=starts, endingTimestamp="1")
        query = BatchQuery(servers, topic, startingOffsets=starts, endingTimestamp="9999999999999")
        assert query.offsets(0) == list(range(60, 100)), "no record is that new: the end is that of the log"
        late = {"startingTimestamp": "9999999999999", "startingOffsetsByTimestampStrategy": "latest"}
        ends = f'{{"{topic}":{{"0":50,"1":50}}}}'
        assert BatchQuery(servers, topic, endingOffsets=ends, **late).offsets(0) == []


class TestTimestampsBeyondSparksType:
    def test_a_record_with_one_fails_a_query_with_timestamps(self, servers: str, admin: Admin) -> None:
        """SPARK-56243: nanoseconds instead of milliseconds, for example."""
        topic = admin.create("nanoseconds", message_timestamp_after_max_ms=2**63 - 1)
        nanoseconds = 1_712_345_678_123_456_789
        write(servers, topic, [Outgoing(b"good", timestamp=1000), Outgoing(b"bad", timestamp=nanoseconds)])
        with pytest.raises(RecordDecodeError, match=r"timestamp at offset 1 of nanoseconds-.*-0: it is beyond Spark's"):
            BatchQuery(servers, topic).offsets(0)
        assert BatchQuery(servers, topic, columns="offset,value").offsets(0) == [0, 1]


class BatchQuery:
    """A batch query that is planned once."""

    def __init__(self, servers: str, topic: str, **given: str) -> None:
        source = HeadraceSource({"kafka.bootstrap.servers": servers, "subscribe": topic, **given})
        self._reader = source.reader(source.schema())
        self._tasks = self._reader.partitions()

    def offsets(self, partition: int) -> list[int]:
        """The offsets that the tasks of a partition read now."""
        return [
            offset
            for task in self._tasks
            if task.value.tp.partition == partition
            for batch in self._reader.read(task)
            for offset in batch["offset"].to_pylist()
        ]


class TestConnections:
    def test_a_worker_reuses_consumers_and_closes_the_least_recently_used(self, servers: str, topic: str) -> None:
        options = options_of(servers, topic)
        own = reading._key(options.settings)
        wanted = OffsetRange(TopicPartition(topic, 0), 0, 10)
        assert rows(wanted, options) == list(range(10))
        kept = reading._idle_consumers[own]
        assert rows(wanted, options) == list(range(10))
        assert reading._idle_consumers[own] is kept
        for number in range(reading._MAX_IDLE_CONSUMERS):
            rows(wanted, options_of(servers, topic, **{"kafka.client.id": f"other-{number}"}))
        assert len(reading._idle_consumers) <= reading._MAX_IDLE_CONSUMERS
        assert own not in reading._idle_consumers, "the least recently used consumer is closed"
        with pytest.raises(ClosedError):
            kept.poll(0.0)

    def test_a_consumer_whose_range_was_not_read_to_the_end_is_not_reused(self, servers: str, topic: str) -> None:
        options = options_of(servers, topic)
        found = reading.read_range(OffsetRange(TopicPartition(topic, 0), 0, 100), options, OFFSETS)
        next(found)
        found.close()  # type: ignore[attr-defined]  # as Spark does with limit()
        assert reading._key(options.settings) not in reading._idle_consumers


def test_a_pattern_that_matches_no_topic_is_logged_once_a_minute_and_when_it_matches(
    servers: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("pattern")
    given = {"kafka.bootstrap.servers": servers, "subscribePattern": f"^{name}"}
    lookup = OffsetLookup(SourceOptions.parse(given, streaming=True))
    try:
        with caplog.at_level("INFO", "headrace.spark.offset_lookup"):
            for _ in range(3):
                assert lookup.existing_partitions() == set()
            admin.create("", name=name)
            assert lookup.existing_partitions() == {TopicPartition(name, 0)}
    finally:
        lookup.close()
    assert [(it.levelname, it.getMessage()) for it in caplog.records if it.name == "headrace.spark.offset_lookup"] == [
        (
            "WARNING",
            f"no topic that this client may describe matches the pattern '^{name}' (for 0 s now; waiting for it).",
        ),
        ("INFO", f"a topic that matches '^{name}' exists now"),
    ]


def test_a_misspelt_topic_is_named_with_a_similar_one(servers: str, admin: Admin) -> None:
    topic = admin.create("payments")
    typo = topic.replace("payments", "paymnets")
    lookup = OffsetLookup(
        SourceOptions.parse({"kafka.bootstrap.servers": servers, "subscribe": f"{topic},{typo}"}, streaming=True)
    )
    try:
        with pytest.raises(OptionError) as raised:
            lookup.selected_partitions()
    finally:
        lookup.close()
    assert str(raised.value) == f"subscribe names topics that do not exist: {typo} (did you mean {topic}?)"
