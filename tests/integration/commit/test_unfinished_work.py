"""An exception inside a `with` block: unfinished records are not committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.errors import CommitFailedError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered_topic
from support.harness.consumers import MakeConsumer

COUNT = 1200


@pytest.fixture(scope="module")
def topic(admin: Admin, servers: str) -> str:
    return numbered_topic(servers, admin.create("unfinished"), 1, COUNT)


def subscribed(make: MakeConsumer, servers: str, topic: str, group: str, **settings: Any) -> Any:
    consumer = make(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", **settings)
    consumer.subscribe([topic])
    return consumer


def committed(make: MakeConsumer, servers: str, topic: str, group: str) -> int | None:
    with make(bootstrap_servers=servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    return None if found is None else found.offset


def leave_by_an_error(consumer: Any, work: Callable[[Any], object]) -> None:
    with pytest.raises(ZeroDivisionError), consumer:
        work(consumer)


def first_records(consumer: Any) -> Any:
    while not (records := consumer.poll(1.0)):
        pass
    return records


@pytest.mark.parametrize("failing", [3, 503])
def test_an_exception_leaves_the_records_of_the_last_poll_uncommitted(
    make: MakeConsumer, servers: str, topic: str, failing: int
) -> None:
    def work(consumer: Any) -> None:
        while True:
            for record in consumer.poll(1.0):
                if record.offset == failing:
                    raise ZeroDivisionError

    group = unique("g")
    leave_by_an_error(subscribed(make, servers, topic, group), work)
    assert committed(make, servers, topic, group) == {3: 0, 503: 500}[failing]


@pytest.mark.parametrize("failing", [3, 503])
def test_an_exception_in_an_iteration_commits_up_to_the_record_that_failed(
    make: MakeConsumer, servers: str, topic: str, failing: int
) -> None:
    def work(consumer: Any) -> None:
        for record in consumer:
            if record.offset == failing:
                raise ZeroDivisionError

    group = unique("g")
    leave_by_an_error(subscribed(make, servers, topic, group), work)
    assert committed(make, servers, topic, group) == failing


def test_an_exception_does_not_take_back_explicit_commits(make: MakeConsumer, servers: str, topic: str) -> None:
    def commit_some(consumer: Any) -> None:
        first_records(consumer)
        consumer.commit({TopicPartition(topic, 0): 7})
        raise ZeroDivisionError

    def commit_all(consumer: Any) -> None:
        first_records(consumer)
        consumer.commit()
        raise ZeroDivisionError

    group = unique("g")
    leave_by_an_error(subscribed(make, servers, topic, group), commit_some)
    assert committed(make, servers, topic, group) == 7
    leave_by_an_error(subscribed(make, servers, topic, group), commit_all)
    assert committed(make, servers, topic, group) == 507


def test_an_exception_does_not_take_back_the_committed_part_of_a_failed_commit(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    """The error names the partitions of the missing topic; all others are committed."""

    def work(consumer: Any) -> None:
        first_records(consumer)
        with pytest.raises(CommitFailedError):
            consumer.commit({TopicPartition(topic, 0): 70, TopicPartition(unique("nowhere"), 0): 1})
        raise ZeroDivisionError

    group = unique("g")
    leave_by_an_error(subscribed(make, servers, topic, group), work)
    assert committed(make, servers, topic, group) == 70


def test_leaving_the_with_statement_commits_all_returned_records(make: MakeConsumer, servers: str, topic: str) -> None:
    group = unique("g")
    with subscribed(make, servers, topic, group) as consumer:
        first_records(consumer)
    assert committed(make, servers, topic, group) == 500


def test_an_exception_does_not_keep_done_records_from_being_committed(
    make: MakeConsumer, servers: str, topic: str
) -> None:
    def work(consumer: Any) -> None:
        consumer.done(first_records(consumer)[:100])
        raise ZeroDivisionError

    group = unique("g")
    leave_by_an_error(subscribed(make, servers, topic, group, commit_mode="done"), work)
    assert committed(make, servers, topic, group) == 100
