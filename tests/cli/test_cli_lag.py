"""`headrace lag` with a real broker: groups, lanes, share groups, checkpoints."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import click
import pytest

from headrace import Consumer, OffsetAndMetadata, TopicPartition
from headrace.cli import lag_queries
from headrace.cli.missing_subscriptions import all_missing_subscriptions
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, Writer, numbered, write
from support.harness.share_consumers import poll_some, put, share_group
from support.harness.shell import headrace
from support.harness.terminal import terminal
from support.harness.two_lanes import crash, laned
from support.harness.waiting import wait_for


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long enough for a slow broker to return the age of a record."""
    monkeypatch.setattr(lag_queries, "_LOOK_FOR", 60.0)


def commit(servers: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        consumer.commit({tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()})


def lag(servers: str, *args: str) -> Any:
    done = headrace("lag", "-b", servers, *args, "--format", "json")
    assert (done.code, done.err) == (0, "")
    return done.json


@pytest.fixture(scope="module")
def behind(servers: str, admin: Admin) -> tuple[str, str]:
    """A group and its topic: 20 records per partition, an hour old, with 20 and 5 of them committed."""
    topic, group = admin.create("behind", 2), unique("lagging")
    at = round(time.time() * 1000) - 3_600_000
    for partition in (0, 1):
        write(servers, topic, [Outgoing(b"x", partition=partition, timestamp=at + n * 1000) for n in range(20)])
    commit(servers, group, {TopicPartition(topic, 0): 20, TopicPartition(topic, 1): 5})
    return group, topic


def test_lag_of_a_group_has_its_records_and_their_age(servers: str, behind: tuple[str, str]) -> None:
    group, topic = behind
    done = headrace("lag", "-b", servers, "-g", group)
    assert (done.code, done.err) == (0, "")
    head, *rows = done.text.splitlines()
    # The record was an hour minus five seconds old when it was written, and some time has passed.
    age = re.fullmatch(rf"{group}: 15 records, the oldest (59 min 5\d s|1 h( \d min)?) old", head)
    assert age is not None, head
    assert [row.split() for row in rows] == [
        ["topic", "partition", "next", "end", "lag", "time", "owner"],
        [topic, "0", "20", "20", "0", "-", "-"],
        [topic, "1", "5", "20", "15", *age[1].split(), "-"],
    ]
    found = lag(servers, "-g", group)
    assert (found["group"], found["lag"], found["lost"], found["trend"]) == (group, 15, 0, None)
    assert 3_590 < found["seconds"] < 4_200
    assert [(it["partition"], it["next"], it["end"], it["lag"], it["lane"]) for it in found["partitions"]] == [
        (0, 20, 20, 0, None),
        (1, 5, 20, 15, None),
    ]
    assert found["partitions"][0]["seconds"] is None


@pytest.mark.parametrize(
    ("threshold", "code"), [("15", 0), ("14", 3), ("1,000", 0), ("2h", 0), ("10m", 3), ("3000s", 3)]
)
def test_lag_beyond_a_threshold_sets_the_exit_code(
    servers: str, behind: tuple[str, str], threshold: str, code: int
) -> None:
    assert headrace("lag", "-b", servers, "-g", behind[0], "--threshold", threshold).code == code


def test_lag_lists_owned_partitions_with_and_without_a_commit(servers: str, admin: Admin) -> None:
    topic, group = admin.create("owned", 2), unique("owners")
    write(servers, topic, [*numbered(3), *numbered(5, 1)])
    settings = {"group_id": group, "client_id": "owner-1", "enable_auto_commit": False}
    with Consumer(bootstrap_servers=servers, **settings) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        before = lag(servers, "-g", group)
        consumer.commit({TopicPartition(topic, 0): 1})
        after = lag(servers, "-g", group)
        shown = headrace("lag", "-b", servers, "-g", group, "--threshold", "6")
    assert [(it["next"], it["end"], it["lag"]) for it in before["partitions"]] == [(None, 3, 3), (None, 5, 5)]
    assert [(it["next"], it["end"], it["lag"]) for it in after["partitions"]] == [(1, 3, 2), (None, 5, 5)]
    assert {it["owner"] for it in after["partitions"]} == {"owner-1@127.0.0.1"}
    assert after["partitions"][1]["seconds"] < 60
    assert shown.code == 3
    assert shown.rows[3][:5] == [topic, "1", "-", "5", "5"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_with_one_client_id_are_told_apart(servers: str, admin: Admin, protocol: str) -> None:
    """For example two Spark queries of one group on one driver."""
    topic, group = admin.create("shared", 2), unique("queries")
    settings = {"bootstrap_servers": servers, "group_id": group, "client_id": "query", "group_protocol": protocol}
    with Consumer(**settings) as one, Consumer(**settings) as two:
        one.subscribe([topic])
        two.subscribe([topic])

        def have_one_each() -> bool:
            one.poll(0.1)
            two.poll(0.1)
            return len(one.assignment()) == len(two.assignment()) == 1

        wait_for("a partition each", have_one_each)
        found = lag(servers, "-g", group)["partitions"]
        shown = headrace("lag", "-b", servers, "-g", group)
        members = headrace("groups", "-b", servers, "-g", group, "--format", "json").json["members"]
    assert [it["owner"] for it in found] == ["query@127.0.0.1"] * 2
    assert {it["member"]: [it["partition"]] for it in found} == {
        it["member"]: it["partitions"][topic] for it in members
    }
    owners = [row[-2:] for row in shown.rows[2:]]
    assert [it["member"].removeprefix("query-")[:8] for it in found] == [short for _, short in owners]
    assert {owner for owner, _ in owners} == {"query@127.0.0.1"}


def test_a_group_with_only_a_transaction_marker_left_has_no_age(servers: str, admin: Admin) -> None:
    topic, group = admin.create("transaction"), unique("readers")
    writer = Writer(servers, transactional_id=unique("tx"))
    writer.producer.begin_transaction()
    writer.send(topic, numbered(3))
    writer.producer.commit_transaction(30)
    admin.wait_end(topic, 4)
    commit(servers, group, {TopicPartition(topic, 0): 3})
    (row,) = lag(servers, "-g", group, "--threshold", "1s")["partitions"]
    assert (row["next"], row["end"], row["lag"], row["seconds"]) == (3, 4, 1, 0.0)


def test_lag_tells_what_was_deleted_before_it_was_read(servers: str, admin: Admin) -> None:
    topic, group = admin.create("deleted"), unique("late")
    write(servers, topic, numbered(10))
    commit(servers, group, {TopicPartition(topic, 0): 2})
    admin.delete_records(topic, 6)
    found = lag(servers, "-g", group)
    assert (found["lag"], found["lost"]) == (4, 4)
    assert "lost" in headrace("lag", "-b", servers, "-g", group).text


def test_a_watch_shows_a_trend(servers: str, admin: Admin) -> None:
    topic, group = admin.create("watched"), unique("watching")
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(1000))
    commit(servers, group, {tp: 100})
    once = headrace("lag", "-b", servers, "-g", group, "--watch", "--times", "1", "--format", "json")
    assert once.json["trend"] is None
    still = headrace("lag", "-b", servers, "-g", group, "--watch", "--times", "3", "--interval", "0.1")
    assert (still.code, still.err) == (0, "")
    assert still.text.count(f"{group}: 900 records") == 3
    assert still.text.endswith("0 records/s written, 0 consumed: not catching up\n")


def test_a_watch_fits_on_a_small_terminal(servers: str, admin: Admin) -> None:
    topic, group = admin.create("wide", 30), unique("watching")
    write(servers, topic, [Outgoing(b"x", partition=n) for n in range(30) for _ in range(n + 1)])
    commit(servers, group, {TopicPartition(topic, n): 0 for n in range(30)})
    with terminal("lag", "-b", servers, "-g", group, "--watch", "--times", "2", rows=12, columns=60) as shown:
        shown.read_rest()
    assert shown.process.returncode == 0
    _, first, second = map(click.unstyle, shown.seen.split("\x1b[2J"))  # the screen is cleared
    for text, rows in ((first, 8), (second, 7)):  # the second has a trend
        lines = text.rstrip().splitlines()
        assert len(lines) < 12
        assert all(len(line) <= 60 for line in lines)
        assert lines[0].startswith(f"{group}: 465 records")
        assert [line.split()[1] for line in lines[2 : 2 + rows]] == [str(29 - n) for n in range(rows)]
        left = sum(range(1, 31 - rows))
        assert lines[2 + rows] == f"… {30 - rows} more rows, with {left} records"


def test_lag_of_a_group_with_two_lanes_counts_both(servers: str, admin: Admin, make_sync: Any) -> None:
    """KIP-333: the group's own commit log has the live offset, the second log the backlog."""
    tp, group = TopicPartition(admin.create("lanes"), 0), unique("laned")
    write(servers, tp.topic, numbered(10))
    commit(servers, group, {tp: 0})
    write(servers, tp.topic, numbered(90, start=10))
    first = laned(make_sync, servers, group, tp.topic)
    seen = 0
    while seen < 40:
        seen += len(first.poll(10, max_records=20))
    first.commit()
    write(servers, tp.topic, numbered(5, start=100))
    crash(first)
    found = lag(servers, "-g", group)
    live, backlog = found["partitions"]
    assert (live["lane"], live["next"], live["end"], live["lag"]) == ("live", 100, 105, 5)
    assert (backlog["lane"], backlog["next"], backlog["end"], backlog["lag"]) == ("backlog", seen, 100, 100 - seen)
    assert found["lag"] == 105 - seen
    table = headrace("lag", "-b", servers, "-g", group).rows
    assert table[1][:3] == ["topic", "partition", "lane"]
    assert [row[2] for row in table[2:]] == ["live", "backlog"]


def test_lag_of_a_share_group_is_what_its_broker_reports(servers: str, admin: Admin, make_sync_share: Any) -> None:
    topic, group = admin.create("queue"), share_group(servers)
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic], max_poll_records=4)

    def is_known() -> bool:
        consumer.poll(0.1)
        return headrace("lag", "-b", servers, "-g", group).code == 0

    wait_for("the member's partition", is_known)
    (row,) = lag(servers, "-g", group)["partitions"]
    assert (row["end"], row["lag"]) == (0, 0), "an empty topic has no lag"
    put(servers, topic, numbered(10), linger_ms=0, batch_num_messages=1)
    records = poll_some(consumer)
    consumer.commit()
    found = lag(servers, "-g", group)
    (row,) = found["partitions"]
    # The brokers move the group's start offset with a delay, but count all acknowledged records.
    assert (row["end"], row["lag"]) == (10, 10 - len(records))
    assert row["next"] <= len(records)
    assert row["seconds"] < 60


def checkpoint(directory: Path, batches: dict[int, Any], committed: int) -> Path:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    for number, offsets in batches.items():
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}\n{{"logOffset":3}}'
        (directory / "offsets" / str(number)).write_text(text)
        (directory / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number <= committed:
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return directory


def test_lag_of_a_spark_checkpoint_counts_from_the_last_committed_batch(
    servers: str, behind: tuple[str, str], tmp_path: Path
) -> None:
    _, topic = behind
    offsets = {0: {topic: {"0": 3, "1": 1}}, 1: {topic: {"0": 18, "1": 4}}, 2: {topic: {"0": 20, "1": 20}}}
    path = checkpoint(tmp_path / "query", offsets, committed=1)
    found = lag(servers, str(path))
    assert (found["group"], found["lag"]) == (str(path), 18)
    assert [it["owner"] for it in found["partitions"]] == [None, None]
    assert [(it["next"], it["lag"]) for it in found["partitions"]] == [(18, 2), (4, 16)]
    # A pipeline's storage has several checkpoints.
    checkpoint(tmp_path / "storage" / "other" / "0", {0: {topic: {"0": 10}}}, committed=0)
    both = lag(servers, str(tmp_path))
    assert both["lag"] == 10 + 16
    assert [it["owner"] for it in both["partitions"]] == ["storage/other/0", "query"], (
        "the slower query of each partition"
    )
    assert headrace("lag", "-b", servers, str(path), "--threshold", "17").code == 3
    path = checkpoint(tmp_path / "beyond", {0: {topic: {"0": 500}}}, committed=0)
    done = headrace("lag", "-b", servers, str(path), "--threshold", "17")
    assert (done.code, "the lag is unknown" in done.err) == (1, True)
    assert done.rows[2][2:5] == ["500", "20", "0"]


def test_lag_of_a_spark_checkpoint_with_two_lanes_counts_both(
    servers: str, behind: tuple[str, str], tmp_path: Path
) -> None:
    _, topic = behind
    place = {topic: {"0": {"frontier": 9, "unread": True}, "1": {"frontier": 18, "holes": {"3": 10}}}}
    found = lag(servers, str(checkpoint(tmp_path / "query", {0: place}, committed=0)))
    assert [(it["partition"], it["lane"], it["next"], it["end"], it["lag"]) for it in found["partitions"]] == [
        (1, "live", 18, 20, 2),
        (1, "backlog", 3, 18, 7),
    ]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("-g", "nobody-here"), 1, "there is no group 'nobody-here'"),
        ((), 2, "name a group with -g, or the directory of a checkpoint"),
        (("-g", "g", "."), 2, "name a group with -g, or the directory of a checkpoint"),
        (("/no/such/place",), 2, "does not exist"),
        (("EMPTY",), 1, "is not the checkpoint of a streaming query"),
        (("UNFINISHED",), 1, "has no finished batch of a Kafka source"),
        (("ELSEWHERE",), 1, "(not-here-1, not-here-2) are not on this cluster: name the right cluster with -b"),
        (("BROKEN",), 1, "is not an offset log of Spark"),
        (("-g", "GROUP", "-t", "other"), 1, "this group or query does not read topic 'other'"),
        (("-g", "GROUP", "--threshold", "much"), 2, "neither a number of records nor a time"),
        (("-g", "GROUP", "--times", "2"), 2, "--times needs --watch"),
        (("-g", "GROUP", "--watch", "--interval", "0"), 2, "0.0 is not in the range"),
        (("-g", "GROUP", "--format", "xml"), 2, "'xml' is not one of"),
    ],
)
def test_lag_refuses_bad_input_in_one_line(
    servers: str, behind: tuple[str, str], tmp_path: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    checkpoint(tmp_path / "unfinished", {0: {"t": {"0": 1}}}, committed=-1)
    checkpoint(tmp_path / "elsewhere", {0: {"not-here-2": {"0": 1}, "not-here-1": {"0": 1}}}, committed=0)
    broken = checkpoint(tmp_path / "broken", {0: {}}, committed=0)
    (broken / "offsets" / "0").write_text("nonsense")
    places = ("empty", "unfinished", "elsewhere", "broken")
    names = {"GROUP": behind[0]} | {name.upper(): str(tmp_path / name) for name in places}
    done = headrace("lag", "-b", servers, *(names.get(arg, arg) for arg in args))
    assert (done.code, done.out) == (code, b"")
    assert said in done.err


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_and_groups_name_subscribed_topics_that_do_not_exist(servers: str, admin: Admin, protocol: str) -> None:
    topic, group = admin.create(f"invoices-{protocol}"), unique("g")
    typo = topic.replace("invoices", "invocies")
    settings = {"bootstrap_servers": servers, "group_id": group, "group_protocol": protocol}
    wrong = f"Topic {typo} is subscribed and does not exist (did you mean {topic}?)"
    with Consumer(settings, allow_auto_create_topics=False) as consumer:
        consumer.subscribe([typo])
        wait_for("the membership", lambda: consumer.poll(0.1) or consumer.metrics()["group"]["generation"] > 0)
        refused = headrace("lag", "-b", servers, "-g", group)
        described = headrace("groups", "-b", servers, "-g", group)
        consumer.subscribe([topic, typo])
        wait_for("the assignment", lambda: consumer.poll(0.1) or consumer.assignment())
        found, shown = lag(servers, "-g", group), headrace("lag", "-b", servers, "-g", group)
        everywhere = all_missing_subscriptions({"bootstrap.servers": servers}, 30.0)
    assert refused.code == 1
    assert refused.err.strip().endswith(f"group {group!r} has no committed offsets. {wrong}")
    assert wrong in described.text
    assert everywhere[group] == [wrong]
    assert all_missing_subscriptions({"bootstrap.servers": "127.0.0.1:1"}, 0.5) == {}
    assert found["missing"] == [wrong]
    assert shown.text.splitlines()[-1] == wrong


def test_lag_names_a_pattern_that_matches_nothing(servers: str) -> None:
    group, name = unique("g"), unique("nothing")
    with Consumer(bootstrap_servers=servers, group_id=group, group_protocol="consumer") as consumer:
        consumer.subscribe(pattern=f"{name}.*")
        wait_for("the membership", lambda: consumer.poll(0.1) or consumer.metrics()["group"]["generation"] > 0)
        refused = headrace("lag", "-b", servers, "-g", group)
    assert f"The pattern '{name}.*' is subscribed and matches no topic" in refused.err
