"""Values that pass all checks but cannot be encoded: the calls that raise, and what keeps working."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest

from headrace import Assignor, GroupMember, OffsetAndMetadata, TopicPartition
from headrace._aio import consumer as async_consumer
from headrace._aio import seeking
from headrace._aio.group import rebalance as group
from headrace._aio.share import consumer as share_consumer
from headrace.errors import EncodingError, StateError
from headrace.sync import consumer as sync_consumer
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.groups import WAYS, member, poll_all
from support.harness.share_consumers import MakeShareConsumer, put, share_group

RECORDS = 5
SURROGATE = "t\ud800"
CLOSES_WITHIN = 10.0
# Sessions last 30 seconds: a successor that gets the partitions sooner shows that the consumer has left the group.
LEFT_WITHIN = 15.0


@pytest.fixture
def topic(admin: Admin, servers: str) -> str:
    name = admin.create("odd")
    write(servers, name, numbered(RECORDS))
    return name


@pytest.fixture(autouse=True)
def no_task_ends(caplog: pytest.LogCaptureFixture) -> Iterable[None]:
    """No background task crashes."""
    caplog.set_level(logging.ERROR, "headrace")
    yield
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the argument checks of public methods."""

    def places(offset: Any) -> OffsetAndMetadata:
        return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)

    def commits(offsets: Any) -> Any:
        return offsets and {TopicPartition(*tp): places(offset) for tp, offset in offsets.items()}

    monkeypatch.setattr(seeking, "offset_of", places)
    monkeypatch.setattr(async_consumer, "commits_in", commits)
    monkeypatch.setattr(sync_consumer, "commits_in", commits)
    monkeypatch.setattr(group, "topics_in", frozenset)
    monkeypatch.setattr(share_consumer, "topics_in", frozenset)


def raised(call: Callable[[], object], kind: type[Exception], timeout: float = 60.0) -> Exception:
    """Repeat the call until it raises this kind of error; return the error."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            call()
        except kind as error:
            return error
    raise AssertionError(f"no {kind.__name__} within {timeout:g} s")


def closes_and_leaves(
    consumer: AnyConsumer, make: MakeConsumer, servers: str, name: str, topic: str, **way: Any
) -> None:
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < CLOSES_WITHIN
    successor = member(make, servers, name, [topic], **way)
    poll_all([successor], lambda: successor.assignment() == {(topic, 0)}, LEFT_WITHIN)


@pytest.mark.usefixtures("unchecked")
def test_a_position_that_cannot_be_encoded_raises_until_a_seek(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """poll() raises the error until a seek; close() cannot commit the position, but leaves the group."""
    name, tp = unique("g"), TopicPartition(topic, 0)
    consumer = member(make, servers, name, [topic], **way)
    poll_until(consumer, RECORDS)
    consumer.seek(tp, 1.5)
    error = raised(lambda: consumer.poll(1.0), EncodingError)
    assert "cannot encode the request Fetch: fetch_offset of FetchPartition cannot be 1.5" in str(error)
    consumer.seek(tp, 0)
    assert len(poll_until(consumer, RECORDS)) == RECORDS
    for wrong in (2**70, 1.5):
        with pytest.raises(EncodingError, match="cannot encode the request OffsetCommit: committed_offset of"):
            consumer.commit({tp: wrong})
        consumer.commit()
    consumer.seek(tp, 2**70)
    closes_and_leaves(consumer, make, servers, name, topic, **way)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("metadata", ["\ud800", 5, "m" * 2**15])
def test_metadata_that_cannot_be_encoded_fails_its_commit_only(
    make: MakeConsumer, servers: str, topic: str, metadata: Any
) -> None:
    name, tp = unique("g"), TopicPartition(topic, 0)
    consumer = member(make, servers, name, [topic], **WAYS["eager"])
    poll_until(consumer, RECORDS)
    with pytest.raises(EncodingError, match=r"committed_metadata of .* cannot be"):
        consumer.commit({tp: OffsetAndMetadata(1, metadata)})
    results: list[Any] = []
    consumer.commit_async({tp: OffsetAndMetadata(1, metadata)}, lambda *news: results.append(news))
    poll_all([consumer], lambda: bool(results))
    assert isinstance(results[0][1], EncodingError)
    consumer.commit({tp: OffsetAndMetadata(1, "fine")})
    assert consumer.committed([tp])[tp].metadata == "fine"
    closes_and_leaves(consumer, make, servers, name, topic, **WAYS["eager"])


@pytest.mark.usefixtures("unchecked")
def test_a_topic_that_cannot_be_encoded_fails_the_subscription_only(
    make: MakeConsumer, servers: str, topic: str, way: dict[str, Any]
) -> None:
    """A new subscription ends the error."""
    name = unique("g")
    consumer = member(make, servers, name, [topic], **way)
    poll_until(consumer, RECORDS)
    consumer.subscribe([topic, SURROGATE])
    raised(lambda: consumer.poll(1.0), EncodingError)
    write(servers, topic, numbered(RECORDS))
    reads_again(consumer, topic)
    closes_and_leaves(consumer, make, servers, name, topic, **way)


@pytest.mark.usefixtures("unchecked")
def test_a_topic_that_cannot_be_encoded_fails_a_share_subscription_only(
    make_share: MakeShareConsumer, servers: str, admin: Admin
) -> None:
    topic = admin.create("odd")
    put(servers, topic, numbered(RECORDS))
    group_id = share_group(servers)
    consumer = make_share(bootstrap_servers=servers, group_id=group_id, topics=[topic, SURROGATE])
    raised(lambda: consumer.poll(1.0), EncodingError)
    reads_again(consumer, topic)
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < CLOSES_WITHIN


def reads_again(consumer: AnyConsumer, topic: str) -> None:
    """Consume with a valid subscription. A request with the old one may still fail."""
    deadline = time.monotonic() + 60
    consumer.subscribe([topic])
    records = 0
    while not records:
        assert time.monotonic() < deadline
        try:
            records = len(consumer.poll(0.5))
        except EncodingError:
            consumer.subscribe([topic])


# -- assignors -----------------------------------------------------------------------------------------------------


class Odd(Assignor):
    """A valid assignor, until the test sets `data` or `shares`."""

    name = "odd"

    def __init__(self) -> None:
        self.data: Any = None
        self.shares: Any = None

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        if isinstance(self.data, Exception):
            raise self.data
        data: bytes | None = self.data
        return data

    def assign(
        self, members: Mapping[str, GroupMember], partitions: Mapping[str, int]
    ) -> Mapping[str, Collection[TopicPartition]]:
        if self.shares is not None:
            wrong: Mapping[str, Collection[TopicPartition]] = self.shares(next(iter(members)))
            return wrong
        (topic,) = partitions
        return {next(iter(members)): [TopicPartition(topic, 0)]}


@pytest.mark.parametrize("data", ["text", 5, ["x"], ValueError("no")], ids=repr)
def test_user_data_that_is_not_bytes_is_raised_by_poll(make: MakeConsumer, servers: str, topic: str, data: Any) -> None:
    name, odd = unique("g"), Odd()
    consumer = member(make, servers, name, [topic], partition_assignment_strategy=[odd])
    odd.data = data
    error = raised(lambda: consumer.poll(5.0), StateError)
    assert "user_data() of the assignor odd" in str(error)
    odd.data = b"fine"
    consumer.subscribe([topic])
    assert poll_until(consumer, RECORDS)
    consumer.close()


@pytest.mark.parametrize(
    "shares",
    [
        lambda who: None,
        lambda who: [who],
        lambda who: {who: None},
        lambda who: {who: ["t"]},
        lambda who: {who: [("t", "0")]},
        lambda who: {who: [(["t"], 0)]},
        lambda who: {5: [], "x": []},
    ],
)
def test_a_malformed_assignment_of_an_assignor_is_raised_by_poll(
    make: MakeConsumer, servers: str, topic: str, shares: Any
) -> None:
    name, odd = unique("g"), Odd()
    odd.shares = shares
    consumer = member(make, servers, name, [topic], partition_assignment_strategy=[odd])
    error = raised(lambda: consumer.poll(5.0), StateError)
    assert "the assignor odd" in str(error)
    odd.shares = lambda who: {who: [(topic, 0)]}  # a plain tuple is accepted
    consumer.subscribe([topic])
    assert poll_until(consumer, RECORDS)
    consumer.close()
