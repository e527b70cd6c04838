"""Logs, partitions and topics that a streaming query has read and that change or disappear, with a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace import TopicPartition
from headrace.spark.data_loss import DataLossError
from headrace.spark.offset_lookup import OffsetLookup
from headrace.spark.options.source import OptionError
from support.brokers.admin import Admin, unique
from support.brokers.produce import Writer, numbered, write
from support.spark.readers import Run, Runs
from support.spark.streams import grid

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    topic = admin.create("lost", 2)
    write(servers, topic, [*numbered(100, 0), *numbered(100, 1)])
    return topic


@pytest.fixture
def run(servers: str, topic: str) -> Iterator[Runs]:
    runs = Runs(servers, topic)
    yield runs
    runs.stop()


class TestLogsThatEndBeforeTheQuery:
    def test_a_log_that_ends_before_the_checkpoint_is_not_read_again(self, run: Runs, topic: str) -> None:
        ahead = {topic: {"0": 105, "1": 100}}
        with pytest.raises(DataLossError, match=r"read to offset 105, but its log ends at 100: records were lost"):
            run(ahead).to_the_end()
        query = run(ahead, failOnDataLoss="false")
        assert query.to_the_end() == []
        assert query.at == {topic: {"0": 100, "1": 100}}, "it resumes at the log end, in Spark's own format"

    def test_an_open_transaction_at_the_end_of_a_log_is_no_data_loss(
        self, run: Runs, servers: str, admin: Admin, topic: str
    ) -> None:
        writer = Writer(servers, transactional_id=unique("tx"))
        writer.producer.begin_transaction()
        writer.send(topic, numbered(5))
        writer.flush()
        uncommitted = run()
        assert len(uncommitted.to_the_end()) == 205
        query = run(uncommitted.at, kafka__isolation__level="read_committed")
        assert query.to_the_end() == []
        writer.producer.commit_transaction(30)
        admin.wait_end(topic, 106)
        write(servers, topic, numbered(1))
        assert query.at == uncommitted.at
        assert run(query.at, kafka__isolation__level="read_committed").to_the_end() == [(0, 106)]

    def test_a_recreated_topic_is_data_loss(self, run: Runs, servers: str, admin: Admin, topic: str) -> None:
        before = {topic: {"0": 100, "1": 100}}
        admin.remove(topic, again=2)
        write(servers, topic, numbered(5))
        with pytest.raises(DataLossError, match="the topic was recreated"):
            run(before).to_the_end()
        query = run(before, failOnDataLoss="false")
        query.begin()
        assert query.trigger() == [], "the first batch only records the start"
        again = run(query.at, failOnDataLoss="false")  # the query is restarted
        assert again.to_the_end() == [(0, offset) for offset in range(5)]
        assert again.at == {topic: {"0": 5, "1": 0}}

    def test_a_deleted_topic_is_data_loss(self, run: Runs, admin: Admin, topic: str) -> None:
        other = admin.create("stays")
        before = {topic: {"0": 100, "1": 100}, other: {"0": 0}}
        admin.remove(topic)
        query = run(before, subscribe=f"{topic},{other}", failOnDataLoss="false")
        with pytest.raises(DataLossError, match="was deleted"):
            run(before, subscribe=f"{topic},{other}").to_the_end()
        assert query.to_the_end() == []
        assert query.at == {other: {"0": 0}}

    @pytest.mark.parametrize("fails", [True, False])
    def test_a_start_beyond_the_end_of_the_log_is_refused(self, run: Runs, topic: str, fails: bool) -> None:
        given = {"startingOffsets": f'{{"{topic}":{{"0":100,"1":101}}}}', "failOnDataLoss": fails}
        with pytest.raises(OptionError, match=r"startingOffsets of lost-.*-1 is 101, but its log ends at 100"):
            run(**given).to_the_end()


class TestTopicsThatAreGone:
    """failOnDataLoss is false in all of them."""

    def test_a_query_keeps_its_offsets_while_all_of_its_topics_are_gone(
        self, run: Runs, servers: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """SPARK-41375: an end without partitions would read everything again when the topics are back."""
        other = admin.create("stays-away")
        write(servers, other, numbered(3))
        query = run.new(subscribePattern=f"{topic}|{other}", failOnDataLoss="false")
        assert len(query.trigger() or []) == 203
        before = query.at
        admin.remove(topic)
        admin.remove(other)
        assert [query.trigger() for _ in range(3)] == [None] * 3
        assert query.at == before
        assert caplog.text.count("was deleted, and some of its records may not have been read") == 1
        ended = run(before, subscribePattern=f"{topic}|{other}", failOnDataLoss="false")
        assert ended.to_the_end() == []
        assert ended.at == before
        admin.recreate(topic, 2)
        write(servers, topic, [*numbered(120, 0), *numbered(110, 1)])
        assert query.trigger() == [*((0, at) for at in range(100, 120)), *((1, at) for at in range(100, 110))]

    def test_a_query_whose_pattern_matches_nothing_yet_reads_new_topics_from_their_beginning(
        self, run: Runs, servers: str, admin: Admin
    ) -> None:
        name = unique("later")
        query = run.new(subscribePattern=name, startingOffsets="latest")
        assert query.trigger() == []
        admin.create("", name=name)
        write(servers, name, numbered(3))
        assert query.trigger() == [(0, 0), (0, 1), (0, 2)]


class TestAvailableNow:
    """The ends are those at the start of the run. What is gone later is noticed when the next batch is planned."""

    def _started(self, run: Runs, **options: str) -> Run:
        query = run(maxOffsetsPerTrigger=60, kafkaConsumer__pollTimeoutMs=90_000, **options)
        query.begin(available_now=True)
        assert query.trigger() == grid(2, 30)
        return query

    @pytest.mark.parametrize("again", [None, 1])
    def test_partitions_that_are_gone_are_data_loss_and_no_task_waits_for_them(
        self, run: Runs, servers: str, admin: Admin, topic: str, again: int | None
    ) -> None:
        fails, continues = self._started(run), self._started(run, failOnDataLoss="false")
        admin.remove(topic, again=again)
        if again:
            write(servers, topic, numbered(100, 0))
        with pytest.raises(DataLossError, match=r"-[01] was deleted"):
            fails.trigger()
        began = time.monotonic()
        found = []
        while (rows := continues.trigger()) is not None:
            found += rows
        assert found == ([(0, at) for at in range(30, 100)] if again else [])
        assert time.monotonic() - began < 45, "it did not wait for kafkaConsumer.pollTimeoutMs"

    def test_a_broker_that_returns_too_low_an_end_does_not_end_the_query_early(
        self, run: Runs, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A new leader does so for a moment (KAFKA-7703)."""
        query = self._started(run)
        ends = dict.fromkeys((TopicPartition(topic, number) for number in range(2)), 30)
        monkeypatch.setattr(OffsetLookup, "existing_end_offsets", lambda _self: dict(ends))
        found = []
        while rows := query.trigger():
            found += rows
        assert sorted(found) == [(number, at) for number in range(2) for at in range(30, 100)]

    def test_a_log_that_ends_earlier_than_at_the_start_is_data_loss(
        self, run: Runs, servers: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        fails, continues = self._started(run), self._started(run, failOnDataLoss="false")
        admin.remove(topic, again=2)
        write(servers, topic, [*numbered(100, 0), *numbered(50, 1)])
        with pytest.raises(DataLossError, match=r"-1 ended at offset 100 when the query started, .* ends at 50 now"):
            fails.trigger()
        found = []
        while (rows := continues.trigger()) is not None:
            found += rows
        assert sorted(found) == [*((0, at) for at in range(30, 100)), *((1, at) for at in range(30, 50))]
        assert caplog.text.count("when the query started, but its log ends at 50 now") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"assign": '{"TOPIC":[0,1]}'}, {"assign": '{"TOPIC":[0]}'}),
        ({"subscribePattern": "TOPIC|OTHER"}, {"subscribePattern": "TOPIC"}),
        ({"subscribe": "TOPIC,OTHER"}, {"subscribe": "TOPIC"}),
    ],
)
def test_a_partition_that_the_options_no_longer_select_was_not_deleted(
    run: Runs, servers: str, admin: Admin, topic: str, before: dict[str, str], after: dict[str, str]
) -> None:
    other = admin.create("other")
    write(servers, other, numbered(1))

    def named(options: dict[str, str]) -> dict[str, str]:
        return {name: value.replace("TOPIC", topic).replace("OTHER", other) for name, value in options.items()}

    first = run.new(**named(before))
    first.trigger()
    with pytest.raises(DataLossError, match="is in the checkpoint, but the options do not select it any more"):
        run(first.at, **named(after)).trigger()
