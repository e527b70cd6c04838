"""The view of a group, from the answers about it; and what is shown where there is no answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace._aio.survey.found import FoundGroup, FoundLog, FoundMember, FoundMembers, FoundShareOffset, FoundTopic
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace.errors import HeadraceError
from headrace.monitor.group_rows import Commit, GroupFacts, LogBounds, checkpoint_views, group_view, is_companion
from headrace.types import OffsetAndMetadata, TopicPartition

A, B, C, D = (TopicPartition("t", n) for n in range(4))
GONE = TopicPartition("deleted", 0)
BOUNDS = LogBounds(
    [FoundTopic("t", None, False, tuple(FoundLog(tp, 1, 0, (1,), (1,), ()) for tp in (A, B, C, D)), 0)],
    {A: 0, B: 10, D: HeadraceError("broker 2 is away")},
    {A: 100, B: HeadraceError("broker 1 is away"), D: 100},
    None,
)
MARK = CommitMark(80, OffsetSet(80, [(20, 50)]), "token").commit
PROGRESS = CommitMark(30, OffsetSet(30), "token").commit


def age(tp: TopicPartition, offset: int, end: int) -> float | None:
    return float(end - offset)


def facts(
    commits: dict[TopicPartition, Commit] | HeadraceError,
    kind: str = "classic",
    members: FoundMembers | HeadraceError | None = None,
    backlog: dict[TopicPartition, OffsetAndMetadata] | None = None,
) -> GroupFacts:
    return GroupFacts(FoundGroup("g", kind, "Stable", 1), members, commits, backlog)


def one_member(*partitions: TopicPartition) -> FoundMembers:
    return FoundMembers("Stable", "range", (FoundMember("m-1", "m", "h", None, frozenset(partitions)),))


def test_every_partition_has_a_row_or_a_reason() -> None:
    commits: dict[TopicPartition, Commit] = {tp: OffsetAndMetadata(40) for tp in (A, B, C, D, GONE)}
    view = group_view(facts(commits, members=one_member(A)), BOUNDS, age)
    found = {row.tp: row for row in view.partitions}
    assert (found[A].lag, found[A].seconds, found[A].owner, found[A].error) == (60, 60.0, "m@h", None)
    assert (found[B].lag, found[B].error) == (None, "broker 1 is away")
    assert (found[D].lag, found[D].error) == (None, "broker 2 is away"), "where the log begins is needed, too"
    assert (found[C].lag, found[C].is_leaderless, found[C].error) == (None, True, "the partition has no leader")
    assert (found[GONE].lag, found[GONE].is_leaderless) == (None, False)
    assert "does not exist any more" in str(found[GONE].error)
    assert {row.committed for row in view.partitions} == {40}
    assert (view.lag, view.seconds, view.error, view.assignor) == (60, 60.0, None, "range")


def test_a_log_whose_records_were_deleted_after_its_end_was_read_is_empty() -> None:
    bounds = LogBounds([], {A: 150}, {A: 100}, None)
    (row,) = group_view(facts({A: OffsetAndMetadata(120)}), bounds, age).partitions
    assert (row.lag, row.lost, row.end, row.is_beyond) == (0, 30, 150, False)


def test_a_member_without_a_commit_has_the_whole_log() -> None:
    view = group_view(facts({}, members=one_member(A)), BOUNDS, age)
    (row,) = view.partitions
    assert (row.committed, row.lag, row.member, row.seconds) == (None, 100, "m-1", 100.0)


def test_two_commit_logs_are_two_rows() -> None:
    view = group_view(facts({A: MARK}, backlog={A: PROGRESS}), BOUNDS, age)
    live, backlog = view.partitions
    assert (live.lane, live.lag, live.seconds) == ("live", 20, 20.0)
    assert (backlog.lane, backlog.lag, backlog.open, backlog.seconds) == ("backlog", 20, ((30, 50),), 50.0)
    assert (view.lag, view.backlog) == (40, 20)


def test_a_commit_that_cannot_be_parsed_is_an_error_of_its_row() -> None:
    broken = OffsetAndMetadata(80, MARK.metadata[:-3])
    (row,) = group_view(facts({A: broken}), BOUNDS, age).partitions
    assert row.lag is None
    assert str(row.error).startswith("the commit cannot be parsed")


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (facts(HeadraceError("commits denied")), "commits denied"),
        (facts({A: OffsetAndMetadata(5)}, members=HeadraceError("members denied")), "members denied"),
        (facts(HeadraceError("no"), members=HeadraceError("never")), "never; no"),
        (facts({}), "has no committed offsets, or none of topics that this client may describe"),
        (facts({}, kind="share"), "has received no records yet"),
    ],
)
def test_what_cannot_be_read_of_a_group_is_its_error(asked: GroupFacts, error: str) -> None:
    view = group_view(asked, BOUNDS, age)
    assert (view.error, view.has_nothing) == (error, error.startswith("has "))


def test_a_group_that_reads_none_of_the_chosen_topics_says_so() -> None:
    bounds = LogBounds([], {}, {}, re.compile("other"))
    assert group_view(facts({A: OffsetAndMetadata(5)}), bounds, age).error == "reads none of the chosen topics"


def test_rows_of_share_groups() -> None:
    commits: dict[TopicPartition, Commit] = {
        A: FoundShareOffset(40, 50),
        B: FoundShareOffset(3, 1),
        C: HeadraceError("not initialized"),
    }
    view = group_view(facts(commits, "share", one_member(A)), BOUNDS, age)
    first, second, third = view.partitions
    assert (first.committed, first.lag, first.completed, first.seconds) == (40, 50, 10, 60.0)
    assert (second.committed, second.lag, second.error) == (3, None, "broker 1 is away")
    assert (third.lag, third.error) == (None, "not initialized")
    (unread,) = group_view(facts({}, "share", one_member(A)), BOUNDS, age).partitions
    assert (unread.committed, unread.lag, unread.error) == (None, None, None), "nobody knows where the group starts"
    (old,) = group_view(facts({A: FoundShareOffset(40, None)}, "share"), BOUNDS, age).partitions
    assert (old.lag, old.completed) == (60, None)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (facts({A: PROGRESS}), True),
        (facts({A: PROGRESS, B: OffsetAndMetadata(3)}), False),  # somebody's own group with that name
        (facts({A: OffsetAndMetadata(3, "headrace/2 broken")}), False),
        (facts(HeadraceError("denied")), False),
        (facts({A: PROGRESS}, members=one_member(A)), False),
    ],
)
def test_the_second_commit_log_is_not_a_group_of_its_own(asked: GroupFacts, expected: bool) -> None:
    assert is_companion(asked) == expected


def checkpoint(path: Path, offsets: str) -> Path:
    for name, text in (("offsets", f"v1\n{{}}\n{offsets}"), ("commits", "v1")):
        (path / name).mkdir(parents=True)
        (path / name / "0").write_text(text)
    return path


def test_every_query_of_a_checkpoint_directory_is_a_group(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", '{"t":{"0":70,"1":5}}')
    checkpoint(tmp_path / "two" / "a", '{"t":{"0":{"frontier":80,"holes":{"20":50}}}}')
    checkpoint(tmp_path / "two" / "b", '{"other":{"0":1}}')
    checkpoint(tmp_path / "two" / "of a table", '{"logOffset":3}')
    unfinished = checkpoint(tmp_path / "two" / "unfinished", '{"t":{"0":1}}')
    (unfinished / "commits" / "0").unlink()
    table = checkpoint(tmp_path / "table", '{"logOffset":3}')
    paths = [one, tmp_path / "two", tmp_path / "missing", table]
    views = {it.name: it for it in (view(BOUNDS, age) for view in checkpoint_views(paths))}
    assert list(views) == [
        str(one),
        *(str(tmp_path / "two" / it) for it in ("a", "b", "unfinished")),
        *map(str, paths[2:]),
    ]
    found = views[str(one)]
    assert (found.kind, found.state, found.lag) == ("spark", "batch 0", 30)
    assert [row.error for row in found.partitions] == [None, "broker 1 is away"]
    assert [(row.lane, row.lag) for row in views[str(tmp_path / "two" / "a")].partitions] == [
        ("live", 20),
        ("backlog", 30),
    ]
    started = views[str(unfinished)]
    assert (started.state, started.error, started.lag) == ("no finished batch", None, None)
    assert "is not the checkpoint of a streaming query" in str(views[str(paths[2])].error)
    assert views[str(table)].error == "has no finished batch of a Kafka source"


def test_a_query_that_is_named_twice_is_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        checkpoint(tmp_path / "all" / name, '{"t":{"0":70}}')
    (tmp_path / "link").symlink_to(tmp_path / "all" / "b")
    monkeypatch.chdir(tmp_path)
    paths = [Path("all/a"), tmp_path / "all" / "a", Path("all"), Path("link"), Path("all"), Path("no"), Path("no")]
    assert [view(BOUNDS, age).name for view in checkpoint_views(paths)] == ["all/a", "all/b", "no"]


def test_decisions_of_a_spark_sink_are_not_offsets() -> None:
    decision = OffsetAndMetadata(7, metadata='{"headrace.sink":1,"sequence":7}')
    view = group_view(facts({A: decision}), BOUNDS, age)
    assert not view.partitions
    assert view.has_nothing


def test_progress_that_cannot_be_parsed_is_ignored() -> None:
    damaged = OffsetAndMetadata(30, metadata=PROGRESS.metadata[:-3])
    with pytest.raises(ValueError, match=r".+"):
        CommitMark.read(damaged)
    view = group_view(facts({A: MARK}, backlog={A: damaged}), BOUNDS, age)
    assert [(row.lane, row.open, row.error) for row in view.partitions] == [
        ("live", ((80, 100),), None),
        ("backlog", ((20, 50),), None),
    ]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"v1\n{}\n" + b"[" * 100_000])
def test_a_damaged_checkpoint_is_an_error_of_its_row(tmp_path: Path, damage: bytes) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_bytes(damage)
        (tmp_path / name / "²").write_bytes(b"v1")
    (view,) = checkpoint_views([tmp_path])
    assert view(BOUNDS, age).error
