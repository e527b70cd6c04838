"""commitOffsets: changed offsets are committed once, unchanged ones once a day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace._machines.commit.offset_set import OffsetSet
from headrace.errors import CommitFailedError
from headrace.spark.group.committer import QueryCommitter
from headrace.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
DAY = 86_400.0


class Group:
    """Replaces the consumer that commits."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.now = 0.0
        self.deleted: set[TopicPartition] = set()

    def commit(self, offsets: Any, timeout: float) -> None:
        self.commits.append({tp: each.offset for tp, each in offsets.items()})
        if gone := self.deleted & offsets.keys():
            error = CommitFailedError(3, "UNKNOWN_TOPIC_OR_PARTITION", False, "deleted")
            error.partitions = frozenset(gone)
            raise error

    def close(self) -> None:
        pass


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def commits(group: Group) -> Iterator[QueryCommitter]:
    commits = QueryCommitter({}, lambda settings: group, lambda: group.now)  # type: ignore[arg-type,return-value]
    yield commits
    commits.close()


def test_only_offsets_that_have_changed_are_committed(group: Group, commits: QueryCommitter) -> None:
    done = {T0: OffsetSet(5), T1: OffsetSet(7)}
    commits.request_commit(done)
    commits.request_commit(done)
    commits.request_commit({**done, T1: OffsetSet(8)})
    assert group.commits == [{T0: 5, T1: 7}, {T1: 8}]


def test_a_deleted_topic_is_not_tried_again_and_holds_up_no_other(
    group: Group, commits: QueryCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    done = {T0: OffsetSet(5), T1: OffsetSet(7)}
    group.deleted = {T0}
    commits.request_commit(done)
    commits.request_commit({**done, T1: OffsetSet(8)})
    assert group.commits == [{T0: 5, T1: 7}, {T1: 8}]
    assert len([each for each in caplog.messages if "deleted" in each]) == 1


def test_all_offsets_are_committed_once_a_day(group: Group, commits: QueryCommitter) -> None:
    """Otherwise brokers delete offsets of a query that gets no records for offsets.retention.minutes."""
    done = {T0: OffsetSet(5), T1: OffsetSet(7)}
    commits.request_commit(done)
    group.now = DAY - 1
    commits.request_commit(done)
    group.now = DAY
    commits.request_commit(done)
    commits.request_commit(done)
    assert group.commits == [{T0: 5, T1: 7}, {T0: 5, T1: 7}]
