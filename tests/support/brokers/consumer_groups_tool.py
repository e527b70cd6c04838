"""`kafka-consumer-groups`, with its tables parsed.

Its JVM takes half a second to start and prints one table at a time, so several run in parallel. The exit code is 0
even on failure; the output has the error.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from support.brokers.java_tool import java_tool
from support.members.events import TopicAndPartition

_TIMEOUT = 90.0


class GroupCommandError(Exception):
    """The error in the output of the tool."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition that the group has committed or owns. None means no value."""

    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    host: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member. Epochs and targets are those of KIP-848."""

    member_id: str
    instance_id: str | None
    host: str
    client_id: str
    partitions: frozenset[TopicAndPartition]
    epoch: int | None
    target_epoch: int | None
    target: frozenset[TopicAndPartition]


@dataclass(frozen=True, slots=True)
class StateRow:
    coordinator: str
    strategy: str | None
    state: str
    members: int
    epoch: int | None
    target_epoch: int | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    state: StateRow
    members: tuple[MemberRow, ...]
    """By client id."""
    partitions: Mapping[TopicAndPartition, PartitionRow]


def describe(bootstrap_servers: str, *groups: str) -> dict[str, GroupDescription]:
    """All three tables of existing groups: `--describe`, with `--members` and with `--state`."""
    asked = [part for group in groups for part in ("--group", group)]
    runs = [
        _start(bootstrap_servers, "--describe", *asked, *table)
        for table in ((), ("--members", "--verbose"), ("--state", "--verbose"))
    ]
    partitions, members, states = (_rows(output) for output in _finish(*runs))
    return {
        group: GroupDescription(
            _state(states[group][0]),
            tuple(sorted(map(_member, members[group]), key=lambda row: row.client_id)),
            {(row["TOPIC"], int(row["PARTITION"])): _partition(row) for row in partitions[group]},
        )
        for group in groups
    }


def committed_offsets(bootstrap_servers: str, group: str) -> dict[TopicAndPartition, int | None]:
    """The offsets that `--describe` shows. A single JVM, unlike `describe`."""
    (output,) = _finish(_start(bootstrap_servers, "--describe", "--group", group))
    return {(row["TOPIC"], int(row["PARTITION"])): _number(row["CURRENT-OFFSET"]) for row in _rows(output)[group]}


def reset_offsets(bootstrap_servers: str, group: str, topics: str, *how: str) -> dict[TopicAndPartition, int]:
    """`--reset-offsets --execute` for topics such as `t` or `t:0,1`. `how` is for example `--to-earliest`."""
    options = ("--reset-offsets", "--group", group, "--topic", topics, *how, "--execute")
    (output,) = _finish(_start(bootstrap_servers, *options))
    return {(row["TOPIC"], int(row["PARTITION"])): int(row["NEW-OFFSET"]) for row in _rows(output)[group]}


def delete_group(bootstrap_servers: str, group: str) -> None:
    _finish(_start(bootstrap_servers, "--delete", "--group", group))


def _start(bootstrap_servers: str, *args: str) -> subprocess.Popen[str]:
    # Its default timeout is five seconds.
    options = ("--bootstrap-server", bootstrap_servers, "--timeout", "60000")
    command = java_tool("consumer.group.ConsumerGroupCommand", *options, *args)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _finish(*runs: subprocess.Popen[str]) -> list[str]:
    outputs = []
    try:
        for run in runs:
            out, err = run.communicate(timeout=_TIMEOUT)
            if run.returncode != 0 or "Error:" in out:
                raise GroupCommandError(f"{out.strip()}\n{err.strip()}".strip())
            outputs.append(out)
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    return outputs


# -- tables --------------------------------------------------------------------------------------------------------

Row = dict[str, str]


def _rows(output: str) -> dict[str, list[Row]]:
    """The rows of each group. A value is below its column's name and may be empty."""
    rows: dict[str, list[Row]] = defaultdict(list)
    columns: list[tuple[str, int]] = []
    for line in output.splitlines():
        if line.startswith("GROUP "):
            columns = [(match[0], match.start()) for match in re.finditer(r"\S+(?: \(ID\))?", line)]
        elif line.strip() and columns:
            ends = [start for _, start in columns[1:]] + [len(line)]
            row = {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
            rows[row["GROUP"]].append(row)
    return rows


def _partition(row: Row) -> PartitionRow:
    return PartitionRow(
        _number(row["CURRENT-OFFSET"]),
        _number(row["LOG-END-OFFSET"]),
        _number(row["LAG"]),
        _text(row["CONSUMER-ID"]),
        _text(row["HOST"]),
        _text(row["CLIENT-ID"]),
    )


def _member(row: Row) -> MemberRow:
    shown = _assignment(row["CURRENT-ASSIGNMENT"])
    assert len(shown) == int(row["#PARTITIONS"]), row
    return MemberRow(
        row["CONSUMER-ID"],
        _text(row.get("GROUP-INSTANCE-ID", "")),
        row["HOST"],
        row["CLIENT-ID"],
        shown,
        _number(row["CURRENT-EPOCH"]),
        _number(row["TARGET-EPOCH"]),
        _assignment(row["TARGET-ASSIGNMENT"]),
    )


def _state(row: Row) -> StateRow:
    return StateRow(
        row["COORDINATOR (ID)"],
        _text(row["ASSIGNMENT-STRATEGY"]),
        row["STATE"],
        int(row["#MEMBERS"]),
        _number(row["GROUP-EPOCH"]),
        _number(row["TARGET-ASSIGNMENT-EPOCH"]),
    )


def _assignment(text: str) -> frozenset[TopicAndPartition]:
    """Parse `topic:0,1;other:3`."""
    topics = [part.rpartition(":") for part in text.split(";")] if _text(text) else []
    return frozenset((topic, int(number)) for topic, _, numbers in topics for number in numbers.split(","))


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def _text(text: str) -> str | None:
    return None if text in ("", "-") else text
