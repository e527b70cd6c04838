"""`headrace topics` and `headrace groups` with a real broker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, TopicPartition
from headrace.errors import HeadraceError
from support.brokers.admin import Admin, unique
from support.brokers.produce import numbered, write
from support.harness.shell import headrace
from support.harness.terminal import terminal
from support.harness.waiting import wait_for


def test_a_topic_is_made_shown_and_deleted(servers: str) -> None:
    name = unique("made")
    made = headrace("topics", "-b", servers, "--create", "-t", name, "-p", "3", "-c", "retention.ms=1000000")
    assert (made.code, made.text, made.err) == (0, f"created {name}\n", "")
    write(servers, name, numbered(5, 1))

    shown = headrace("topics", "-b", servers, "-t", name)
    assert shown.rows == [
        ["topic", "partition", "leader", "replicas", "in", "sync", "first", "end", "records"],
        [name, "0", "1", "1", "1", "0", "0", "0"],
        [name, "1", "1", "1", "1", "0", "5", "5"],
        [name, "2", "1", "1", "1", "0", "0", "0"],
    ]
    (found,) = headrace("topics", "-b", servers, "-t", name, "--format", "json").json
    assert found["topic"] == name
    assert found["partitions"][1] == {
        "partition": 1,
        "leader": 1,
        "replicas": [1],
        "in_sync": [1],
        "first": 0,
        "end": 5,
    }
    listed = headrace("topics", "-b", servers)
    assert [name, "3", "1", "5", "0"] in listed.rows
    assert not any(row[0].startswith("__") for row in listed.rows)

    again = headrace("topics", "-b", servers, "--create", "-t", name)
    assert (again.code, again.out) == (1, b"")
    assert again.err.startswith(f"headrace: CreateTopics of {name}: TOPIC_ALREADY_EXISTS")
    gone = headrace("topics", "-b", servers, "--delete", "-t", name, "--yes", "--format", "table")
    assert (gone.code, gone.text.splitlines()[-1]) == (0, f"deleted {name}")
    # The broker learns about the deletion a moment after the controller.
    wait_for("the topic to be gone", lambda: headrace("topics", "-b", servers, "-t", name).code)
    missing = headrace("topics", "-b", servers, "-t", name)
    assert (missing.code, missing.out) == (1, b"")
    assert missing.err == f"headrace: there is no topic {name!r}: `headrace topics` lists those that exist\n"
    assert headrace("topics", "-b", servers, "--delete", "-t", name, "--yes").code == 1
    made = headrace("topics", "-b", servers, "--create", "-t", name, "--format", "json")
    gone = headrace("topics", "-b", servers, "--delete", "-t", name, "--format", "json", "--yes")
    assert (made.json, gone.json) == ({"created": name}, {"deleted": name})


def test_internal_topics_are_listed_only_when_asked_for(servers: str, admin: Admin) -> None:
    with Consumer(bootstrap_servers=servers, group_id=unique("any")) as consumer:
        consumer.committed([TopicPartition(admin.create("any"), 0)])
    assert "__consumer_offsets" in headrace("topics", "-b", servers, "--internal").text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_shown_with_its_member(servers: str, admin: Admin, protocol: str) -> None:
    topic, group = admin.create("shared", 4), unique("group")
    with Consumer(bootstrap_servers=servers, group_id=group, group_protocol=protocol, client_id="reader-7") as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        wait_for("the group", lambda: [group, protocol, "Stable"] in headrace("groups", "-b", servers).rows)
        shown = headrace("groups", "-b", servers, "-g", group)
        found = headrace("groups", "-b", servers, "-g", group, "--format", "json").json
    assert shown.text.startswith(f"{group}: {protocol}, Stable, {'range' if protocol == 'classic' else 'uniform'}\n")
    assert shown.rows[2][:5] == ["reader-7", "127.0.0.1", "-", "4", f"{topic}:0-3"]
    (member,) = found["members"]
    assert member["partitions"] == {topic: [0, 1, 2, 3]}
    assert member["member"].startswith("reader-7") or protocol == "consumer"
    empty = headrace("groups", "-b", servers, "-g", group)
    assert empty.text.endswith("no members\n")


def test_a_share_group_is_listed_with_its_member(servers: str, admin: Admin, make_sync_share: Any) -> None:
    topic, group = admin.create("queue", 2), unique("share")
    consumer = make_sync_share(bootstrap_servers=servers, group_id=group, topics=[topic])
    deadline = time.monotonic() + 60
    found = headrace("groups", "-b", servers, "-g", group, "--format", "json")
    while (
        found.code != 0 or not any(it["partitions"] for it in found.json["members"])
    ) and time.monotonic() < deadline:
        consumer.poll(0.1)
        found = headrace("groups", "-b", servers, "-g", group, "--format", "json")
    described = found.json
    assert described["members"][0]["partitions"] == {topic: [0, 1]}
    assert described["kind"] == "share"
    assert [group, "share", "Stable"] in headrace("groups", "-b", servers).rows


def test_a_group_that_does_not_exist_is_named(servers: str) -> None:
    done = headrace("groups", "-b", servers, "-g", "nobody-here")
    assert (done.code, done.out) == (1, b"")
    assert done.err == "headrace: there is no group 'nobody-here': `headrace groups` lists those that exist\n"


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "--create"),
        ("topics", "--create", "--delete", "-t", "x"),
        ("topics", "-p", "3"),
        ("topics", "--yes"),
        ("topics", "--dry-run", "-t", "x"),
        ("topics", "--delete", "-t", "x", "--yes", "--dry-run"),
        ("topics", "--create", "-t", "x", "-p", "0"),
        ("topics", "--create", "-t", "x", "-c", "novalue"),
        ("topics", "--format", "xml"),
        ("topics", "-C", "no.such.setting=1"),
        ("topics", "-C", "nonsense"),
        ("topics", "-F", "/no/such/file"),
        ("groups", "--format", "xml"),
        ("groups", "surplus"),
    ],
)
def test_options_that_make_no_sense_are_refused(servers: str, args: tuple[str, ...]) -> None:
    done = headrace(args[0], "-b", servers, *args[1:])
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("headrace: ")
    assert done.err.count("\n") == 1


def test_a_login_that_is_refused_is_told_once(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    settings = [part for name, value in login.items() for part in ("-C", f"{name}={value}")]
    done = headrace("topics", "-b", servers, *settings)
    assert (done.code, done.out, done.err.count("\n")) == (1, b"", 1)
    assert "giving up" not in caplog.text
    with pytest.raises(HeadraceError):
        headrace("--debug", "topics", "-b", servers, *settings)
    assert "giving up" in caplog.text


@pytest.mark.parametrize("command", [("topics",), ("groups",), ("lag", "-g", "g"), ("tail", "-t", "t")])
def test_a_broker_that_cannot_be_reached_is_named(command: tuple[str, ...]) -> None:
    done = headrace(*command, "-b", "127.0.0.1:1", "--timeout", "0.5")
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("headrace: no broker could be reached: cannot connect to 127.0.0.1:1")
    assert done.err.endswith("Is the broker running, and -b right?\n")
    assert done.err.count("\n") == 1


def test_without_a_broker_the_command_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    done = headrace("topics")
    assert (done.code, done.err) == (
        2,
        "headrace: no broker: name one with -b host:port (or in HEADRACE_BOOTSTRAP), or start one here with "
        "`headrace up` (headrace topics --help)\n",
    )
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "nonsense")
    assert "'nonsense' is not host:port" in headrace("topics").err
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "localhost:99999")
    assert "the port of 'localhost:99999' is not between 1 and 65535" in headrace("topics").err


def test_settings_can_come_from_a_file(servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# the cluster\nbootstrap.servers={servers}\n\nclient.id = someone\n")
    assert headrace("topics", "-F", str(file)).code == 0
    monkeypatch.setenv("HEADRACE_CONFIG_FILE", str(file))
    assert headrace("topics").code == 0
    other = tmp_path / "other.properties"
    other.write_text("bootstrap.servers=nonsense\n")
    assert "'nonsense' is not host:port" in headrace("topics", "-F", str(other)).err, (
        "-F is closer than the environment"
    )
    monkeypatch.setenv("HEADRACE_CONFIG_FILE", str(tmp_path / "missing"))
    assert "HEADRACE_CONFIG_FILE" in headrace("topics").err
    monkeypatch.delenv("HEADRACE_CONFIG_FILE")
    file.write_text("no sense\n")
    assert headrace("topics", "-F", str(file)).code == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("lag",), "name a group with -g, or the directory of a checkpoint"),
        (("topics", "--create"), "name the topic with -t"),
        (("tail", "-t", "x", "-o", "sideways"), "'sideways' is none of beginning"),
        (("produce", "-t", "no name"), "'no name' is not a valid topic name"),
        (("topic",), "No such command 'topic'. Did you mean 'topics'?"),
        (("xyz",), "No such command 'xyz'"),
    ],
)
def test_mistakes_are_reported_before_a_missing_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    done = headrace(*args)
    assert (done.code, done.out, done.err.count("\n")) == (2, b"", 1)
    assert said in done.err
    assert "no broker" not in done.err


def test_a_topic_that_is_not_there_cannot_be_deleted(servers: str) -> None:
    done = headrace("topics", "-b", servers, "--delete", "-t", "not-there")
    assert (done.code, done.err) == (
        1,
        "headrace: there is no topic 'not-there': `headrace topics` lists those that exist\n",
    )


@pytest.mark.parametrize("args", [(), ("--dry-run",), ("--format", "json")])
def test_without_a_terminal_a_topic_is_only_deleted_with_yes(servers: str, admin: Admin, args: tuple[str, ...]) -> None:
    name = admin.create("kept")
    done = headrace("topics", "-b", servers, "--delete", "-t", name, *args)
    assert done.code == 0
    assert args == ("--dry-run",) or done.err == "dry run: nothing was changed. --yes carries it out\n"
    assert args == ("--format", "json") or [name, "1", "1", "0", "0"] in done.rows
    assert admin.is_there(name)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 1)])
def test_in_a_terminal_a_question_comes_before_a_topic_is_deleted(
    servers: str, admin: Admin, typed: str, code: int
) -> None:
    """The default answer is no."""
    name = admin.create("asked")
    with terminal("topics", "-b", servers, "--delete", "-t", name, columns=200) as screen:
        screen.read_until(f"Delete topic {name} with all records? [y/N]")
        screen.type(typed)
        assert ("deleted" if code == 0 else "nothing was changed") in screen.read_rest()
        assert screen.process.returncode == code
    if code == 0:
        wait_for("the deletion", lambda: not admin.is_there(name))
    assert admin.is_there(name) == (code == 1)
