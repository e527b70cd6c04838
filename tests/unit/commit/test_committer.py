"""Commits of positions: their order, and which deliveries they finish. No broker runs."""

from __future__ import annotations

import asyncio
import threading

import pytest
from kio.schema.errors import ErrorCode

from headrace import AsyncConsumer, TopicPartition
from headrace._protocol.codes import kafka_error
from headrace.errors import CommitFailedError
from support.brokers.fake_broker import run
from support.harness.buffer_in_memory import TP, buffer, delivered, position_of

_WITHIN = 10.0


def test_commits_arrive_in_the_order_in_which_they_were_asked_for():
    arrived = []

    async def commit(offsets, _):
        await asyncio.sleep(0)  # another commit could overtake here
        arrived.append(offsets[TP].offset)

    async def main():
        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
            consumer._parts.lifecycle.start().offset_requests.commit = commit
            consumer.commit_async({TP: 1})
            consumer.commit_async({TP: 2})
            await consumer.commit({TP: 3})

    run(main())
    assert arrived == [1, 2, 3]


@pytest.mark.parametrize("is_of_positions", [True, False])
def test_a_commit_of_a_partition_that_was_lost_meanwhile_is_not_written(is_of_positions):
    """It waits for an earlier one. If the partition is assigned again before, that is another ownership."""
    arrived, errors = [], []

    async def main():
        begun, release = threading.Event(), threading.Event()  # the consumer may have a loop of its own

        async def commit(offsets, _):
            arrived.append(offsets[TP].offset)
            begun.set()
            await asyncio.to_thread(release.wait, _WITHIN)

        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
            consumer._parts.lifecycle.start().offset_requests.commit = commit
            consumer.assign([TP])
            consumer.seek(TP, 2)
            consumer.commit_async({TP: 1})
            consumer.commit_async(None if is_of_positions else {TP: 2}, lambda _, error: errors.append(error))
            assert await asyncio.to_thread(begun.wait, _WITHIN)
            consumer._parts.committer.give_up([TP])
            consumer.commit_async({TP: 3})
            release.set()
            await consumer.commit({TP: 4})

    run(main())
    assert arrived == [1, 3, 4]
    assert [type(error) for error in errors] == [type(None) if is_of_positions else CommitFailedError]


@pytest.mark.parametrize("is_of_positions", [True, False])
def test_a_retried_commit_leaves_out_what_was_given_up_meanwhile(is_of_positions):
    """Another task polls, and completes a rebalance, before the commit is sent again: under the generation in which
    somebody else owns the partition."""
    other, attempts = TopicPartition(TP.topic, TP.partition + 1), []

    async def main():
        async def commit(offsets, _):
            attempts.append(set(offsets))
            if len(attempts) == 1:
                consumer._parts.committer.give_up([TP])
                raise kafka_error(ErrorCode.coordinator_load_in_progress, "OffsetCommit")

        async with AsyncConsumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
            consumer._parts.lifecycle.start().offset_requests.commit = commit
            consumer.assign([TP, other])
            consumer.seek(TP, 2)
            consumer.seek(other, 3)
            if is_of_positions:
                await consumer.commit()
            else:
                with pytest.raises(CommitFailedError, match="revoked or lost"):
                    await consumer.commit({TP: 2, other: 3})

    run(main())
    assert attempts == [{TP, other}, {other}][: 1 + is_of_positions]


def test_a_commit_finishes_only_what_was_delivered_before_it():
    """Another task polls while a commit waits for its response."""
    made = buffer()
    delivered(made, 0, 10)
    first = made.last_delivery
    delivered(made, 10, 20)
    made.finished(None, first)
    made.take_back()
    assert position_of(made) == 10
    delivered(made, 10, 20)
    made.finished(None, made.last_delivery)
    made.take_back()
    assert position_of(made) == 20
