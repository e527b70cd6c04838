"""Where a reset moves a partition, and what it commits, for every form of commit that a group may have."""

from __future__ import annotations

import random

import pytest

from headrace import OffsetAndMetadata, TopicPartition, Watermarks
from headrace._machines.admin.deletion import deletion_warning
from headrace._machines.admin.reset import DROP, KEEP, PartitionFacts, open_ranges, outdated, planned_change, undecided
from headrace._machines.admin.reset_target import ResetTarget, TargetKind
from headrace._machines.commit.offset_set import OffsetSet
from headrace._machines.lanes.commit_metadata import CommitMark
from headrace.admin import OffsetChange, ResetPlan
from headrace.spark.sink.protocol import BatchDecision, encode_decision

TP = TopicPartition("t", 0)
LOG = Watermarks(0, 10_000_000)
EARLIEST, LATEST = ResetTarget(TargetKind.EARLIEST), ResetTarget(TargetKind.LATEST)


def to(offset: int) -> ResetTarget:
    return ResetTarget(TargetKind.OFFSET, offset)


def by(records: int) -> ResetTarget:
    return ResetTarget(TargetKind.SHIFT, records)


AT = ResetTarget(TargetKind.TIME, 1000)


@pytest.mark.parametrize(
    ("target", "current", "at_time", "new", "note"),
    [
        (EARLIEST, 50, None, 10, ""),
        (LATEST, 50, None, 90, ""),
        (to(70), 50, None, 70, ""),
        (to(10), 50, None, 10, ""),
        (to(90), 50, None, 90, ""),
        (to(9), 50, None, 10, "offset 9 is before the start of the log"),
        (to(91), 50, None, 90, "offset 91 is beyond the end of the log"),
        (by(+5), 50, None, 55, ""),
        (by(-5), 50, None, 45, ""),
        (by(-41), 50, None, 10, "offset 9 is before the start of the log"),
        (by(-51), 50, None, 10, "offset -1 is before the start of the log"),
        (by(+41), 50, None, 90, "offset 91 is beyond the end of the log"),
        (by(+5), None, None, None, "nothing is committed"),
        (AT, 50, 30, 30, ""),
        (AT, 50, None, 90, "no record since then"),
        (to(70), None, None, 70, ""),
        (EARLIEST, 500, None, 10, "offset 500 belongs to a log that was recreated or truncated"),
        (
            by(-1),
            500,
            None,
            90,
            "offset 499 is beyond the end of the log; offset 500 belongs to a log that was recreated or truncated",
        ),
    ],
)
def test_a_plain_commit_moves_to_the_target_within_the_log(
    target: ResetTarget, current: int | None, at_time: int | None, new: int | None, note: str
) -> None:
    commit = None if current is None else OffsetAndMetadata(current, "my own note", 3)
    change = planned_change(PartitionFacts(TP, commit, None, Watermarks(10, 90), at_time), target, None)
    assert (change.current, change.new, change.note, change.open_ranges) == (current, new, note, ())
    assert change.commit == (None if new is None else OffsetAndMetadata(new))
    assert change.change == (None if new is None or current is None else new - current)


# The live lane is at 130, [70, 120) is skipped; the backlog lane has done [70, 85).
TOKEN = CommitMark(130, OffsetSet(130, [(70, 120)]), "a", "mine", 5)
PROGRESS = CommitMark(85, OffsetSet(85), "a")
# Two lanes have begun, and the live lane has processed nothing yet.
STARTED = CommitMark(120, OffsetSet(120, [(70, 120)]), "a")
# The first one after an orderly end, and records finished in any order.
ENDED = CommitMark(70, OffsetSet(130, [(70, 120)]), "", "", 5)
SCATTERED = CommitMark(100, OffsetSet(120, [(100, 105), (110, 112)]))


@pytest.mark.parametrize(
    ("first", "second", "log", "target", "ranges"),
    [
        (TOKEN, None, (0, 200), LATEST, [(70, 120)]),
        (TOKEN, PROGRESS, (0, 200), LATEST, [(85, 120)]),
        (TOKEN, CommitMark(85, OffsetSet(85), "b"), (0, 200), LATEST, [(70, 120)]),  # of another token
        (TOKEN, PROGRESS, (90, 200), LATEST, [(90, 120)]),  # retention
        (TOKEN, PROGRESS, (120, 200), LATEST, []),
        (TOKEN, PROGRESS, (0, 200), to(100), [(85, 100)]),
        (TOKEN, PROGRESS, (0, 200), to(85), []),  # all open records are delivered anyway
        (TOKEN, PROGRESS, (0, 200), EARLIEST, []),
        (TOKEN, CommitMark(120, OffsetSet(120), "a"), (0, 200), LATEST, []),  # the backlog is done
        (STARTED, None, (0, 200), LATEST, [(70, 120)]),
        (STARTED, None, (0, 120), LATEST, [(70, 120)]),
        (STARTED, PROGRESS, (0, 200), to(110), [(85, 110)]),
        (STARTED, PROGRESS, (150, 200), LATEST, []),
        (ENDED, None, (0, 200), LATEST, [(70, 120)]),
        (SCATTERED, None, (0, 200), LATEST, [(100, 105), (110, 112)]),
        (SCATTERED, None, (0, 200), by(+11), [(100, 105), (110, 111)]),
    ],
)
def test_open_ranges_below_the_new_offset_need_a_decision(
    first: CommitMark,
    second: CommitMark | None,
    log: tuple[int, int],
    target: ResetTarget,
    ranges: list[tuple[int, int]],
) -> None:
    facts = PartitionFacts(TP, first.commit, second.commit if second else None, Watermarks(*log))
    undecided = planned_change(facts, target, None)
    assert list(undecided.open_ranges) == ranges
    assert ResetPlan("g", "classic", (undecided,)).needs_decision is bool(ranges)
    assert (undecided.commit is None) is bool(ranges)
    new = undecided.new
    assert new is not None

    dropped = planned_change(facts, target, DROP)
    assert (dropped.new, dropped.commit) == (new, OffsetAndMetadata(new))

    kept = planned_change(facts, target, KEEP)
    assert kept.new == new
    assert kept.commit is not None
    mark = CommitMark.read(kept.commit)
    # What the next start reads: everything below the new offset is done, except for exactly these ranges.
    assert (mark.token, mark.done) == ("", OffsetSet(new, ranges))
    assert mark.offset == (ranges[0][0] if ranges else new)


@pytest.mark.parametrize(("target", "epoch"), [(to(130), 5), (to(131), None)])
def test_a_kept_commit_has_the_leader_epoch_only_up_to_the_old_offset(target: ResetTarget, epoch: int | None) -> None:
    """Behind the old offset, the log may be of a later epoch: a start would take that for a truncation."""
    change = planned_change(PartitionFacts(TP, TOKEN.commit, None, Watermarks(0, 200)), target, KEEP)
    assert change.commit is not None
    assert (change.commit.leader_epoch, CommitMark.read(change.commit).note) == (epoch, "mine")


def test_ranges_that_do_not_fit_into_the_metadata_are_delivered_again_and_that_is_said() -> None:
    """The two logs together can have more ranges than one commit has room for."""
    chance = random.Random(1)
    at, holes = 0, []
    while len(holes) < 3000:
        at += chance.randrange(1, 500)
        holes.append((at, at := at + chance.randrange(1, 500)))
    end = at + 1
    first = CommitMark(end, OffsetSet(end, [(0, end - 1)]), "a")
    second = OffsetSet(end - 1, holes)
    packed = CommitMark(second.low, second, "a").commit
    assert len(packed.metadata) > 4000
    facts = PartitionFacts(TP, first.commit._replace(metadata=first.commit.metadata + " " + "x" * 2000), packed, LOG)
    kept = planned_change(facts, LATEST, KEEP)
    assert kept.note.endswith("too many ranges to store, some completed records are delivered again")
    assert kept.commit is not None
    assert len(kept.commit.metadata) <= 4096
    assert CommitMark.read(kept.commit).done <= OffsetSet(LOG.high, kept.open_ranges)


DAMAGED = OffsetAndMetadata(130, "headrace/2 130 a 70 nonsense")


def test_a_commit_that_cannot_be_parsed_can_only_be_dropped() -> None:
    facts = PartitionFacts(TP, DAMAGED, None, Watermarks(0, 200))
    with pytest.raises(ValueError, match="damaged"):
        open_ranges(facts)
    undecided, kept, dropped = (planned_change(facts, LATEST, how) for how in (None, KEEP, DROP))
    assert (undecided.commit, kept.commit, dropped.commit) == (None, None, OffsetAndMetadata(200))
    assert undecided.note == "the open ranges of its commit cannot be parsed"
    earliest = planned_change(facts, EARLIEST, None)  # delivers everything anyway
    assert (earliest.commit, earliest.open_ranges) == (OffsetAndMetadata(0), ())


def test_progress_that_cannot_be_parsed_leaves_the_whole_range_open() -> None:
    facts = PartitionFacts(TP, TOKEN.commit, DAMAGED, Watermarks(0, 200))
    assert open_ranges(facts) == ((70, 120),)


def test_a_decision_of_a_spark_sink_is_not_an_offset_and_stays() -> None:
    decision = BatchDecision(3, "query", 7, True)
    (text,) = encode_decision(decision)
    change = planned_change(PartitionFacts(TP, OffsetAndMetadata(0, text), None, Watermarks(0, 200)), LATEST, DROP)
    assert (change.new, change.commit, change.note) == (None, None, "a decision of an exactly-once Spark sink")


def test_a_warning_about_a_deletion_names_the_decisions_of_a_spark_sink() -> None:
    (text,) = encode_decision(BatchDecision(3, "query", 7, True))
    plain, decision = OffsetAndMetadata(5, "note"), OffsetAndMetadata(0, text)
    assert deletion_warning([plain, decision]).startswith("has the decisions of an exactly-once Spark sink")
    assert deletion_warning([plain]) == ""


def test_the_refusal_counts_the_open_records_and_explains_the_choices() -> None:
    facts = PartitionFacts(TP, TOKEN.commit, PROGRESS.commit, Watermarks(0, 200))
    text = undecided("g", (planned_change(facts, LATEST, None),) * 5)
    assert text.startswith("group 'g' has 175 open records below the new offsets (t-0, t-0, t-0 and 2 more)")
    assert "'keep' delivers them" in text
    assert "'drop' skips them" in text


@pytest.mark.parametrize("backlog", [KEEP, DROP])
def test_a_plan_is_outdated_when_the_commit_or_the_progress_of_the_backlog_changes(backlog: str) -> None:
    first, second = TOKEN.commit, PROGRESS.commit
    change = planned_change(PartitionFacts(TP, first, second, Watermarks(0, 200)), LATEST, backlog)
    plan = ResetPlan("g", "classic", (change,), backlog, {}, {TP: first}, {TP: second})
    further = OffsetAndMetadata(second.offset + 1, second.metadata)
    other = OffsetAndMetadata(second.offset, second.metadata + " note")
    assert outdated(plan, {TP: first}, {TP: second}) is None
    assert outdated(plan, {TP: OffsetAndMetadata(131)}, {}) == (
        "the offset of t-0 in group 'g' has changed from 130 to 131 since the reset was planned. Nothing was changed: "
        "plan it again"
    )
    for after, change in (
        ({}, f"from {second.offset} to nothing"),
        ({TP: further}, f"from {second.offset} to {second.offset + 1}"),
        ({TP: other}, f"(still {second.offset}, with other metadata)"),
    ):
        text = outdated(plan, {TP: first}, after)
        assert text is not None
        assert text.startswith(f"the progress of the backlog of t-0 in group 'g' has changed {change} since the reset")


def test_a_partition_that_stays_as_it_is_does_not_make_a_plan_outdated() -> None:
    change = OffsetChange(TP, 5, None, "the topic does not exist")
    assert outdated(ResetPlan("g", "classic", (change,), None, {}, {TP: OffsetAndMetadata(5)}), {}, {}) is None
