"""Plans the reset of a group's offsets: what is committed for each partition.

`new` is the offset from which everything is delivered. Ranges that are still open below it (the backlog of KIP-333,
records that `commit.mode=done` has not finished) need a decision:

    drop   a plain commit of `new`: the open ranges are never delivered
    keep   a plain commit of the lowest open offset, with what is completed beyond it: the form that an orderly end of
           two lanes leaves behind. Headrace delivers the open ranges and everything from `new` on. Other clients resume
           at the lowest open offset, so they miss nothing, and deliver again what was completed

A new offset below all open ranges needs none: they are delivered again with everything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from ...admin import OffsetChange, ResetPlan
from ...types import OffsetAndMetadata, TopicPartition, Watermarks
from ..commit.offset_set import OffsetSet, Range
from ..lanes.commit_metadata import CommitMark, done_offsets
from .reset_target import ResetTarget, TargetKind

KEEP, DROP = "keep", "drop"
_SINK_MARK = '"headrace.sink"'
_Commits = Mapping[TopicPartition, OffsetAndMetadata]


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionFacts:
    """`commit` is in the group's own log, `progress` in that of its backlog. `at_time` is the first offset at or after
    the target's time, if there is one."""

    partition: TopicPartition
    commit: OffsetAndMetadata | None
    progress: OffsetAndMetadata | None
    log: Watermarks
    at_time: int | None = None


def is_sink_decision(commit: OffsetAndMetadata) -> bool:
    """Whether a commit is no offset, but a decision of an exactly-once Spark sink (`spark/sink/`)."""
    return _SINK_MARK in commit.metadata


def planned_change(facts: PartitionFacts, target: ResetTarget, backlog: str | None) -> OffsetChange:
    tp, current = facts.partition, None if facts.commit is None else facts.commit.offset
    if facts.commit is not None and is_sink_decision(facts.commit):
        return OffsetChange(tp, current, None, "a decision of an exactly-once Spark sink")
    wanted, reason = _wanted(facts, target)
    if wanted is None:
        return OffsetChange(tp, current, None, reason)
    new = min(max(wanted, facts.log.low), facts.log.high)
    notes = [reason] if reason else []
    if wanted < new:
        notes.append(f"offset {wanted} is before the start of the log")
    elif wanted > new:
        notes.append(f"offset {wanted} is beyond the end of the log")
    if current is not None and current > facts.log.high:
        notes.append(f"offset {current} belongs to a log that was recreated or truncated")
    try:
        mark, found = _open_ranges(facts)
    except ValueError:
        # Readers refuse such a commit. Its open ranges are unknown, so it counts as one.
        ranges = _below(new, [(facts.log.low, new)])
        commit = OffsetAndMetadata(new) if backlog == DROP or not ranges else None
        notes.append("the open ranges of its commit cannot be parsed")
        return OffsetChange(tp, current, new, "; ".join(notes), ranges, commit)
    ranges = _below(new, found)
    plain = OffsetAndMetadata(new)
    if not ranges:
        return OffsetChange(tp, current, new, "; ".join(notes), (), plain)
    if backlog is None:
        notes.append(f"keeps or drops {_open(ranges)}")
        return OffsetChange(tp, current, new, "; ".join(notes), ranges)
    if backlog == DROP:
        notes.append(f"drops {_open(ranges)}")
        return OffsetChange(tp, current, new, "; ".join(notes), ranges, plain)
    assert mark is not None
    kept = OffsetSet(new, ranges)
    # Beyond the old offset the epoch of the old commit says nothing.
    epoch = mark.leader_epoch if new <= mark.offset else None
    commit = CommitMark(kept.low, kept, "", mark.note, epoch).commit
    notes.append(f"keeps {_open(ranges)}, commits {kept.low}")
    if OffsetSet.from_text(commit.metadata, commit.offset) != kept:
        notes.append("too many ranges to store, some completed records are delivered again")
    return OffsetChange(tp, current, new, "; ".join(notes), ranges, commit)


def _below(new: int, ranges: Iterable[Range]) -> tuple[Range, ...]:
    return tuple((start, min(end, new)) for start, end in ranges if start < new)


def _open(ranges: Iterable[Range]) -> str:
    count = sum(end - start for start, end in ranges)
    return f"{count} open record{'' if count == 1 else 's'}"


def _wanted(facts: PartitionFacts, target: ResetTarget) -> tuple[int | None, str]:
    """The offset that was asked for, or None to leave the partition alone; and why, if that needs an explanation."""
    log = facts.log
    if target.kind is TargetKind.EARLIEST:
        return log.low, ""
    if target.kind is TargetKind.LATEST:
        return log.high, ""
    if target.kind is TargetKind.OFFSET:
        return target.number, ""
    if target.kind is TargetKind.SHIFT:
        if facts.commit is None:
            return None, "nothing is committed"
        return facts.commit.offset + target.number, ""
    if facts.at_time is None:
        return log.high, "no record since then"
    return facts.at_time, ""


def open_ranges(facts: PartitionFacts) -> tuple[Range, ...]:
    """The ranges that are open although the committed offset, or completed offsets, are beyond them. Raises ValueError
    if they cannot be parsed."""
    return _open_ranges(facts)[1]


def _open_ranges(facts: PartitionFacts) -> tuple[CommitMark | None, tuple[Range, ...]]:
    """The mark of the commit, and its open ranges from the start of the log on."""
    if facts.commit is None:
        return None, ()
    first = CommitMark.read(facts.commit)
    second = None
    if first.token and facts.progress is not None:
        try:
            second = CommitMark.read(facts.progress)
        except ValueError:  # as readers do: the backlog is delivered again
            second = None
    done = done_offsets(first, second) | OffsetSet(facts.log.low)
    # A range that ends at the live lane's offset is no hole of the set: nothing beyond it is completed.
    return first, tuple(done.open(0, max(first.offset, done.frontier)))


def undecided(group: str, changes: tuple[OffsetChange, ...]) -> str:
    """Why a plan is refused that says nothing about open ranges."""
    found = [each for each in changes if each.open_ranges]
    count = sum(each.open_records for each in found)
    where = ", ".join(str(each.partition) for each in found[:3]) + (f" and {len(found) - 3} more" if found[3:] else "")
    return (
        f"group {group!r} has {count} open records below the new offsets ({where}): earlier ones that it has not "
        f"processed yet. Choose: 'keep' delivers them, besides everything from the new offsets on; 'drop' skips them"
    )


def outdated(plan: ResetPlan, now: _Commits, progress: _Commits) -> str | None:
    """Why a plan is refused that no longer fits the commits of the group and of its backlog, or None."""
    for tp in plan.commits:
        for name, before, after in (
            ("offset", plan.found.get(tp), now.get(tp)),
            ("progress of the backlog", plan.progress.get(tp), progress.get(tp)),
        ):
            if before != after:
                was, is_now = _shown(before), _shown(after)
                change = f"from {was} to {is_now}" if was != is_now else f"(still {is_now}, with other metadata)"
                return (
                    f"the {name} of {tp} in group {plan.group!r} has changed {change} since the reset was planned. "
                    "Nothing was changed: plan it again"
                )
    return None


def _shown(commit: OffsetAndMetadata | None) -> str:
    return "nothing" if commit is None else str(commit.offset)
