"""Errors name denied topics and groups, and allowed topics keep being consumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headrace import Consumer, Record, ShareConsumer, TopicPartition
from headrace.errors import AuthorizationError
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.shell import headrace


@pytest.fixture(scope="module")
def open_topic(secured: SecuredBroker) -> str:
    """A topic that `reader` may read."""
    name = secured.create("allowed", 20)
    secured.allow("reader", "topic", name, "read", "describe")
    return name


@pytest.fixture(scope="module")
def closed_topic(secured: SecuredBroker) -> str:
    return secured.create("denied", 20)


def denial(call: Callable[[], object]) -> AuthorizationError:
    with pytest.raises(AuthorizationError) as caught:
        call()
    assert not caught.value.retriable
    return caught.value


def poll_through(consumer: AnyConsumer, topic: str, count: int) -> tuple[list[Record], list[AuthorizationError]]:
    """The records of the allowed topic, and the errors raised for the other topic meanwhile."""
    records: list[Record] = []
    errors: list[AuthorizationError] = []
    deadline = time.monotonic() + 60
    while (len(records) < count or not errors) and time.monotonic() < deadline:
        try:
            records += consumer.poll(0.5)
        except AuthorizationError as error:
            errors.append(error)
    return [record for record in records if record.topic == topic], errors


def test_a_denied_topic_is_named_and_the_others_are_read(
    make: MakeConsumer, secured: SecuredBroker, open_topic: str, closed_topic: str
) -> None:
    consumer = make(secured.broker.config_of("reader"), auto_offset_reset="earliest")
    consumer.assign([(open_topic, 0), (closed_topic, 0)])
    records, errors = poll_through(consumer, open_topic, 20)
    seen = len(records)
    assert seen >= 20
    assert "TOPIC_AUTHORIZATION_FAILED" in str(errors[0])
    assert closed_topic in str(errors[0])
    producer = secured.producer()
    producer.produce(open_topic, b"one more")
    producer.flush(60)
    records, _ = poll_through(consumer, open_topic, 1)
    assert [record.value for record in records] == [b"one more"], "the topic is consumed after the error, too"
    for call in (
        lambda: consumer.end_offsets([(closed_topic, 0)]),
        lambda: consumer.partitions_for_topic(closed_topic),
    ):
        assert closed_topic in str(denial(call))


def test_a_denied_topic_raises_although_others_have_records(
    make_sync: MakeConsumer, secured: SecuredBroker, open_topic: str, closed_topic: str
) -> None:
    """Otherwise a steady stream of records would hide the error for ever."""
    consumer = make_sync(secured.broker.config_of("reader"), auto_offset_reset="earliest", max_poll_records=1)
    consumer.assign([(open_topic, 0), (closed_topic, 0)])
    assert closed_topic in str(denial(lambda: consumer.position((closed_topic, 0))))
    deadline = time.monotonic() + 60
    while not consumer.metrics()["buffered_records"]:
        assert time.monotonic() < deadline
        consumer.position((open_topic, 0))
    assert closed_topic in str(denial(lambda: consumer.poll(10)))
    assert len(consumer.poll(10)) == 1, "not twice in a row while there are records"


def test_a_denied_topic_of_a_subscription_is_named_and_the_others_are_read(
    make: MakeConsumer, secured: SecuredBroker, open_topic: str, closed_topic: str
) -> None:
    group = unique("readers")
    secured.allow("reader", "group", group, "read")
    consumer = make(secured.broker.config_of("reader"), group_id=group, auto_offset_reset="earliest")
    consumer.subscribe([open_topic, closed_topic])
    records, errors = poll_through(consumer, open_topic, 20)
    assert len(records) >= 20
    assert closed_topic in str(errors[0])
    consumer.commit()
    assert consumer.committed([(open_topic, 0)])[open_topic, 0].offset >= 20


def test_a_denied_group_is_named(make: MakeConsumer, secured: SecuredBroker, open_topic: str) -> None:
    foreign = unique("others")
    consumer = make(secured.broker.config_of("reader"), group_id=foreign, enable_auto_commit=False)
    consumer.subscribe([open_topic])
    for call in (
        lambda: [consumer.poll(20) for _ in range(3)],
        lambda: consumer.committed([(open_topic, 0)]),
    ):
        error = denial(call)
        assert (error.name, foreign in str(error)) == ("GROUP_AUTHORIZATION_FAILED", True)


def test_a_denied_kip_848_group_is_named(make: MakeConsumer, secured: SecuredBroker, open_topic: str) -> None:
    foreign = unique("others")
    consumer = make(secured.broker.config_of("reader"), group_id=foreign, group_protocol="consumer")
    consumer.subscribe([open_topic])
    error = denial(lambda: [consumer.poll(20) for _ in range(3)])
    assert (error.name, foreign in str(error)) == ("GROUP_AUTHORIZATION_FAILED", True)


def test_a_denied_group_fails_the_commit_and_not_the_poll(
    make: MakeConsumer, secured: SecuredBroker, open_topic: str
) -> None:
    """A consumer that only seeks needs no ACL for its group."""
    consumer = make(secured.broker.config_of("reader"), group_id=unique("others"), enable_auto_commit=False)
    consumer.assign([(open_topic, 0)])
    consumer.seek((open_topic, 0), 0)
    assert len(poll_until(consumer, 20)) >= 20
    assert "group" in str(denial(lambda: consumer.commit()))


def test_a_denied_share_group_is_named(secured: SecuredBroker, open_topic: str) -> None:
    foreign = unique("others")
    with ShareConsumer(secured.broker.config_of("reader"), group_id=foreign) as consumer:
        consumer.subscribe([open_topic])
        error = denial(lambda: [consumer.poll(20) for _ in range(3)])
        assert (error.name, foreign in str(error)) == ("GROUP_AUTHORIZATION_FAILED", True)


def test_a_user_without_any_permission_sees_no_topics(
    make: MakeConsumer, secured: SecuredBroker, open_topic: str
) -> None:
    consumer = make(secured.broker.config_of("stranger"), auto_offset_reset="earliest")
    assert consumer.list_topics() == {}
    consumer.assign([(open_topic, 0)])
    assert open_topic in str(denial(lambda: [consumer.poll(20) for _ in range(3)]))


def test_a_denied_topic_is_read_once_it_is_authorized(make_sync: MakeConsumer, secured: SecuredBroker) -> None:
    topic = secured.create("later", 5)
    consumer = make_sync(secured.broker.config_of("reader"), auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    assert topic in str(denial(lambda: [consumer.poll(20) for _ in range(3)]))
    secured.allow("reader", "topic", topic, "read", "describe")
    assert len(_despite(consumer, 5)) == 5


def _despite(consumer: AnyConsumer, count: int) -> Iterable[Record]:
    """Poll `count` records and ignore errors from before the ACL was granted."""
    records: list[Record] = []
    deadline = time.monotonic() + 60
    while len(records) < count and time.monotonic() < deadline:
        try:
            records += consumer.poll(0.5)
        except AuthorizationError:
            continue
    return records


def test_the_command_line_names_denied_topics_and_unknown_ages(
    secured: SecuredBroker, closed_topic: str, tmp_path: Path
) -> None:
    """Watching a group does not require reading its topics, and denied topics are reported."""
    seen, group = secured.create("seen", 20), unique("watched")
    secured.allow("reader", "topic", seen, "describe")
    secured.allow("reader", "group", group, "describe")
    file = tmp_path / "reader.properties"
    settings = secured.broker.config_of("reader")
    file.write_text("".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items()))

    denied = headrace("topics", "-F", str(file), "-t", closed_topic)
    assert (denied.code, denied.out) == (1, b"")
    assert denied.err == f"headrace: Metadata of {closed_topic}: TOPIC_AUTHORIZATION_FAILED (29)\n"
    for number, topic in enumerate((closed_topic, seen)):
        for name, text in (("offsets", f'v1\n{{}}\n{{"{topic}": {{"0": 3}}}}'), ("commits", "v1\n{}")):
            (tmp_path / f"query-{number}" / name).mkdir(parents=True)
            (tmp_path / f"query-{number}" / name / "0").write_text(text)
    unseen = headrace("lag", "-F", str(file), str(tmp_path))
    assert (unseen.code, closed_topic in unseen.err) == (1, True)

    with Consumer(secured.broker.mutual_config, group_id=group) as consumer:
        consumer.commit({TopicPartition(seen, 0): 5})
    watched = headrace("lag", "-F", str(file), "-g", group, "--format", "json", "--threshold", "14")
    assert (watched.code, watched.json["lag"], watched.json["seconds"]) == (3, 15, None)
    aged = headrace("lag", "-F", str(file), "-g", group, "--threshold", "1d")
    assert (aged.code, aged.err) == (
        1,
        f"headrace: the age of the lag of {seen}-0 is unknown: its next record could not be read\n",
    )
