"""`headrace groups reset`, `delete` and `config` with a real broker."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import click
import pytest

from headrace import Admin, OffsetAndMetadata, TopicPartition
from headrace._machines.lanes.commit_metadata import BACKLOG_SUFFIX
from headrace.cli import changes
from support.brokers.admin import Admin as Broker
from support.brokers.admin import unique
from support.brokers.produce import numbered, write
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.shell import Done, headrace
from support.harness.terminal import terminal
from support.harness.two_lanes import behind, crash, laned

END = 1500


@pytest.fixture(scope="module")
def topic(servers: str, admin: Broker) -> str:
    name = admin.create("orders", 2)
    write(servers, name, numbered(END, 0))
    write(servers, name, numbered(10, 1))
    admin.delete_records(name, 100)
    return name


@pytest.fixture
def group(servers: str, topic: str) -> str:
    """It has committed 1200 of partition 0 and 10 of partition 1."""
    name = unique("billing")
    with Admin(bootstrap_servers=servers) as ours:
        ours.alter_offsets(name, {TopicPartition(topic, 0): 1200, TopicPartition(topic, 1): 10})
    return name


def committed(servers: str, group: str) -> list[int]:
    with Admin(bootstrap_servers=servers) as ours:
        return [each.offset for _, each in sorted(ours.committed(group).items())]


def reset(servers: str, group: str, *args: str) -> Done:
    return headrace("groups", "reset", "-b", servers, "-g", group, *args)


def test_a_reset_without_a_terminal_is_a_dry_run(servers: str, group: str, topic: str) -> None:
    done = reset(servers, group, "--to", "50")
    assert (done.code, done.err) == (0, "dry run: nothing was changed. --yes carries it out\n")
    assert done.text.splitlines() == [
        f"{'topic':{len(topic)}}  partition  current  new  change  note",
        f"{topic}          0    1,200  100  -1,100  offset 50 is before the start of the log",
        f"{topic}          1       10   10       0  offset 50 is beyond the end of the log",
    ]
    assert committed(servers, group) == [1200, 10]
    told = reset(servers, group, "--to", "50", "--dry-run")
    assert (told.code, told.err, told.text) == (0, "", done.text)
    assert committed(servers, group) == [1200, 10]


def test_a_reset_with_yes_is_carried_out(servers: str, group: str, topic: str) -> None:
    done = reset(servers, group, "--to", "-100", "-t", f"{topic}:0", "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.rows[1:] == [[topic, "0", "1,200", "1,100", "-100"], ["set", "1", "offset", "of", "group", group]]
    assert committed(servers, group) == [1100, 10]


def test_a_reset_as_json(servers: str, group: str, topic: str) -> None:
    shown = reset(servers, group, "--to", "latest", "--format", "json")
    assert (shown.code, shown.json["applied"]) == (0, False)
    done = reset(servers, group, "--to", "latest", "--format", "json", "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "group": group,
        "kind": "classic",
        "applied": True,
        "changes": [
            {
                "topic": topic,
                "partition": partition,
                "current": current,
                "new": end,
                "change": end - current,
                "open_ranges": [],
                "committed": end,
                "note": None,
                "error": None,
            }
            for partition, current, end in ((0, 1200, END), (1, 10, 10))
        ],
    }


@pytest.mark.parametrize(
    ("typed", "code", "said", "offsets"),
    [("y\n", 0, "set 2 offsets of group", [100, 0]), ("\n", 1, "nothing was changed", [1200, 10])],
)
def test_a_terminal_shows_the_table_and_asks(
    servers: str, group: str, typed: str, code: int, said: str, offsets: list[int]
) -> None:
    """The default answer is no."""
    with terminal("groups", "reset", "-b", servers, "-g", group, "--to", "earliest", columns=200) as screen:
        shown = screen.read_until("[y/N]")
        assert "1,200" in shown
        assert f"Set 2 offsets of group {group}?" in shown
        screen.type(typed)
        assert said in screen.read_rest()
        assert screen.process.returncode == code
    assert committed(servers, group) == offsets


@pytest.mark.parametrize("command", [("reset", "--to", "earliest"), ("delete",)])
def test_ctrl_c_at_the_question_changes_nothing(
    servers: str, group: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop would take the first Ctrl-C, and the question would stay."""

    def interrupted(*_: object, **__: object) -> bool:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        raise KeyboardInterrupt

    monkeypatch.setattr(changes, "_can_ask", lambda: True)
    monkeypatch.setattr(click, "confirm", interrupted)
    assert headrace("groups", *command, "-b", servers, "-g", group).code == 130
    assert committed(servers, group) == [1200, 10]


def test_a_group_that_does_not_exist_is_refused_unless_it_is_to_be_created(servers: str, topic: str) -> None:
    name = unique("billling")
    done = reset(servers, name, "-t", topic, "--to", "earliest", "--yes")
    assert (done.code, done.out) == (1, b"")
    assert done.err == (
        f"headrace: there is no group {name!r}: `headrace groups` lists those that exist; --create sets offsets for a "
        "new one\n"
    )
    assert reset(servers, name, "-t", topic, "--to", "earliest", "--yes", "--create").code == 0
    assert committed(servers, name) == [100, 0]


def test_members_are_named_by_the_refusal(servers: str, group: str, topic: str, make_sync: MakeConsumer) -> None:
    consumer = make_sync(bootstrap_servers=servers, group_id=group, client_id="the-biller")
    consumer.subscribe([topic])
    poll_until(consumer, 1)
    for command in (("reset", "--to", "earliest"), ("delete",)):
        done = headrace("groups", *command, "-b", servers, "-g", group, "--yes")
        assert done.code == 1
        assert re.search(r"it has 1 member: the-biller at 127\.0\.0\.1 \(the-biller-[0-9a-f-]+\)\. Stop", done.err)
        assert done.err.count("\n") == 1


def test_open_ranges_are_shown_and_need_a_decision(servers: str, admin: Broker, make_sync: MakeConsumer) -> None:
    tp = TopicPartition(admin.create("lanes"), 0)
    group = behind(servers, tp, 70, 120)
    consumer = laned(make_sync, servers, group, tp.topic)
    assert consumer.position(tp) == 120
    crash(consumer)
    shown = headrace("groups", "-b", servers, "-g", group)
    assert shown.text.splitlines()[2:] == [
        "50 records skipped so far, and still to be processed:",
        f"{'topic':{len(tp.topic)}}  partition  open  ranges",
        f"{tp.topic}          0    50  70-119",
    ]
    described = headrace("groups", "-b", servers, "-g", group, "--format", "json").json
    assert described["open_ranges"] == [{"topic": tp.topic, "partition": 0, "ranges": [[70, 120]]}]

    refused = reset(servers, group, "--to", "latest", "--yes")
    assert refused.code == 1
    assert refused.rows[1] == [
        tp.topic,
        "0",
        "120",
        "120",
        "0",
        "70-119",
        "keeps",
        "or",
        "drops",
        "50",
        "open",
        "records",
    ]
    assert "has not processed 50 records below the new offsets. Choose --backlog keep" in refused.err
    assert reset(servers, group, "--to", "latest", "--yes", "--format", "json").json["applied"] is False
    dropped = reset(servers, group, "--to", "latest", "--dry-run", "--backlog", "drop")
    assert dropped.rows[1][6:] == ["drops", "50", "open", "records"]
    kept = reset(servers, group, "--to", "latest", "--yes", "--backlog", "keep")
    assert (kept.code, kept.err) == (0, "")
    assert "keeps 50 open records, commits 70" in kept.text
    assert committed(servers, group) == [70]
    assert "skipped so far" not in headrace("groups", "-b", servers, "-g", group).text


def test_a_group_is_described_although_its_open_ranges_cannot_be_parsed(servers: str, group: str, topic: str) -> None:
    with Admin(bootstrap_servers=servers) as ours:
        ours.alter_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(5, "headrace/2 5 a 2 nonsense")})
    done = headrace("groups", "-b", servers, "-g", group)
    assert (done.code, done.text) == (0, f"{group}: classic, Empty, no assignor\nno members\n")
    assert done.err.startswith(f"headrace: the open ranges are unknown: the commit of group '{group}' for {topic}-0")
    assert headrace("groups", "-b", servers, "-g", group, "--format", "json").json["open_ranges"] is None


def test_groups_are_deleted_with_their_backlog(
    servers: str, admin: Broker, make_sync: MakeConsumer, group: str
) -> None:
    tp = TopicPartition(admin.create("lanes"), 0)
    laned_group = behind(servers, tp, 70, 120)
    consumer = laned(make_sync, servers, laned_group, tp.topic)
    assert len(consumer.poll(60, max_records=10)) == 10
    consumer.commit()
    crash(consumer)
    where = ("groups", "delete", "-b", servers, "-g", group, "-g", laned_group)
    dry = headrace(*where)
    assert (dry.code, dry.err) == (0, "dry run: nothing was changed. --yes carries it out\n")
    assert [row[:4] for row in dry.rows[1:]] == [
        [group, "classic", "Empty", "2"],
        [laned_group, "classic", "Empty", "1"],
    ]
    done = headrace(*where, "--yes")
    assert (done.code, done.err) == (0, "")
    names = [group, laned_group, laned_group + BACKLOG_SUFFIX]
    assert done.text.splitlines()[3:] == [f"deleted {name}" for name in names]
    listed = {row[0] for row in headrace("groups", "-b", servers).rows}
    assert not listed & set(names)
    again = headrace(*where, "--yes")
    assert (again.code, again.err) == (
        1,
        f"headrace: there is no group {group!r}: `headrace groups` lists those that exist\n",
    )


def test_the_offsets_of_one_topic_are_deleted(servers: str, admin: Broker, group: str, topic: str) -> None:
    other = admin.create("other")
    with Admin(bootstrap_servers=servers) as ours:
        ours.alter_offsets(group, {TopicPartition(other, 0): 0})
    where = ("groups", "delete", "-b", servers, "-g", group, "--yes")
    done = headrace(*where, "-t", topic, "--format", "json")
    assert (done.code, done.json["deleted"]) == (0, [group])
    assert committed(servers, group) == [0]
    missing = headrace(*where, "-t", topic)
    assert (missing.code, missing.err) == (1, f"headrace: group {group!r} has no offsets of topic {topic!r}\n")


def test_the_decisions_of_a_spark_sink_are_not_moved_and_their_deletion_is_warned_about(
    servers: str, group: str
) -> None:
    """They are beside offsets of Kafka's own topic."""
    decision = OffsetAndMetadata(0, '{"headrace.sink": 1, "sequence": 1}')
    with Admin(bootstrap_servers=servers) as ours:
        ours.alter_offsets(group, {TopicPartition("__consumer_offsets", 7): decision})
    assert len(reset(servers, group, "--to", "latest", "--format", "json").json["changes"]) == 2
    done = headrace("groups", "delete", "-b", servers, "-g", group, "--dry-run")
    assert (done.code, done.err) == (
        0,
        f"{group} has the decisions of an exactly-once Spark sink: without them, its query stops, or writes a batch "
        "twice\n",
    )


def test_settings_of_a_group_are_shown_set_and_unset(servers: str) -> None:
    name = unique("mails")
    where = ("groups", "config", "-b", servers, "-g", name)
    assert ["share.auto.offset.reset", "latest", "the", "brokers"] in headrace(*where).rows
    done = headrace(*where, "--set", "share.auto.offset.reset=earliest", "--set", "share.delivery.count.limit=7")
    assert (done.code, done.err) == (0, "")
    assert ["share.auto.offset.reset", "earliest", "the", "group"] in done.rows
    assert ["share.delivery.count.limit", "7", "the", "group"] in done.rows
    found: list[dict[str, Any]] = headrace(*where, "--unset", "share.delivery.count.limit", "--format", "json").json
    values = {each["name"]: (each["value"], each["default"]) for each in found}
    assert values["share.auto.offset.reset"] == ("earliest", False)
    assert values["share.delivery.count.limit"] == ("5", True)
    refused = headrace(*where, "--set", "share.auto.offset.reset=sideways")
    assert refused.code == 1
    assert "share.auto.offset.reset" in refused.err


def test_options_before_the_subcommand_count(servers: str, group: str) -> None:
    done = headrace("groups", "-b", servers, "-g", group, "--format", "json", "reset", "--to", "latest")
    assert (done.code, done.json["group"]) == (0, group)
    twice = headrace("groups", "-g", "nobody", "reset", "-b", servers, "-g", group, "--to", "latest")
    assert (twice.code, "is given more than once" in twice.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("reset", "--to", "earliest"), "Missing option '-g'"),
        (("reset", "-g", "g"), "Missing option '--to'"),
        (("reset", "-g", "g", "--to", "sideways"), "'sideways' is none of earliest, latest"),
        (("reset", "-g", "g", "--to", "@yesterday"), "'yesterday' is not a valid time"),
        (("reset", "-g", "g", "--to", "1", "-t", "t:x"), "'t:x' is not TOPIC, TOPIC:0 or TOPIC:0,2-4"),
        (("reset", "-g", "g", "--to", "1", "--yes", "--dry-run"), "--yes and --dry-run cannot be combined"),
        (("reset", "-g", "g", "--to", "1", "--create"), "--create needs -t"),
        (("reset", "-g", "g", "--to", "1", "--backlog", "both"), "'both' is not one of 'keep', 'drop'"),
        (("delete",), "Missing option '-g'"),
        (("delete", "-g", "g", "--yes", "--dry-run"), "--yes and --dry-run cannot be combined"),
        (("config", "-g", "g", "--set", "novalue"), "novalue is not of the form NAME=VALUE"),
        (("config", "-g", "g", "--set", "a=1", "--unset", "a"), "--set and --unset of a cannot be combined"),
        (("describe",), "No such command 'describe'"),
    ],
)
def test_mistakes_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    done = headrace("groups", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, b"", 1)
    assert said in done.err
