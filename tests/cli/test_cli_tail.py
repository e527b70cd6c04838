"""`headrace produce` and `headrace tail` with a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, TopicPartition
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.shell import headrace
from support.harness.terminal import terminal


def tail(servers: str, topic: str, *args: str) -> list[str]:
    done = headrace("tail", "-b", servers, "-t", topic, *args)
    assert (done.code, done.err) == (0, "")
    return done.text.splitlines()


# -- produce ---------------------------------------------------------------------------------------------------------


def test_produce_makes_a_record_of_each_line(servers: str, admin: Admin, tmp_path: Path) -> None:
    topic = admin.create("lines", 2)
    file = tmp_path / "more.txt"
    file.write_bytes(b"a:one\r\nb:two:three\nc:")
    done = headrace("produce", "-b", servers, "-t", topic, "-K", ":", "-p", "1", "-H", "source=test", str(file))
    assert (done.code, done.out, done.err) == (0, b"", f"3 records written to {topic}\n")
    with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(topic, 1)])
        consumer.seek_to_beginning()
        found: list[Any] = []
        while len(found) < 3:
            found += [(r.key, r.value, r.headers) for r in consumer.poll(10)]
    assert found == [
        (key, value, (("source", b"test"),)) for key, value in [(b"a", b"one"), (b"b", b"two:three"), (b"c", b"")]
    ]


def test_produce_reads_lines_of_standard_input(servers: str, admin: Admin) -> None:
    topic = admin.create("line")
    assert headrace("produce", "-b", servers, "-t", topic, stdin=b"hello\n").err == f"1 record written to {topic}\n"
    assert tail(servers, topic, "-o", "beginning", "-e") == ["hello"]


def test_produce_to_a_topic_that_does_not_exist_is_refused_without_create(servers: str) -> None:
    """The broker of the tests creates topics on metadata requests of a producer, so the command must not send one."""
    topic = unique("misspelled")
    done = headrace("produce", "-b", servers, "-t", topic, stdin=b"hello\n")
    assert (done.code, done.out) == (1, b"")
    assert done.err == (
        f"headrace: there is no topic '{topic}': --create creates it, `headrace topics` lists those that exist\n"
    )
    assert headrace("topics", "-b", servers, "-t", topic).code == 1
    for created in (f"created {topic}\n", ""):
        done = headrace("produce", "-b", servers, "-t", topic, "--create", stdin=b"hello\n")
        assert (done.code, done.err) == (0, f"{created}1 record written to {topic}\n")
    assert tail(servers, topic, "-o", "beginning", "-e") == ["hello", "hello"]


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_produce_on_a_terminal_asks_before_it_creates_a_topic(
    servers: str, tmp_path: Path, answer: str, code: int
) -> None:
    topic = unique("asked")
    (tmp_path / "lines").write_text("hello\n")
    with terminal("produce", "-b", servers, "-t", topic, str(tmp_path / "lines"), columns=200) as shown:
        shown.read_until(f"There is no topic '{topic}'. Create it? [y/N]: ")
        shown.type(f"{answer}\n")
        shown.read_rest()
    assert shown.process.returncode == code, shown.seen
    assert ("1 record written" in shown.seen, "there is no topic" in shown.seen) == (code == 0, code == 1)
    assert (headrace("topics", "-b", servers, "-t", topic).code == 0) is (code == 0)


def test_settings_that_make_no_sense_create_no_topic(servers: str) -> None:
    topic = unique("not-created")
    assert headrace("produce", "-b", servers, "-t", topic, "--create", "-C", "nonsense=1", stdin=b"x\n").code == 2
    assert headrace("topics", "-b", servers, "-t", topic).code == 1


def test_what_tail_prints_as_json_produce_writes_again(servers: str, admin: Admin) -> None:
    topic, copy = (admin.create(name, 2, retention_ms=-1) for name in ("json", "copy"))
    write(
        servers,
        topic,
        [
            Outgoing(b'quoted "text" \xc3\xa9', b"k", 0, 1_000_000, [("h", b"1"), ("h", None)]),
            Outgoing(None, None, 1, 2_000_000),
            Outgoing(b"\xff\x00", b"\xfe", 1, 3_000_000),
        ],
    )
    first = headrace("tail", "-b", servers, "-t", topic, "-o", "beginning", "-e", "--format", "json")
    assert headrace("produce", "-b", servers, "-t", copy, "--format", "json", stdin=first.out).code == 0
    second = headrace("tail", "-b", servers, "-t", copy, "-o", "beginning", "-e", "--format", "json")
    one, two = ([json.loads(line) for line in it.text.splitlines()] for it in (first, second))
    by_place = {(found["partition"], found["offset"]): found for found in one}
    assert by_place[0, 0] == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_000_000,
        "key": "k",
        "value": 'quoted "text" é',
        "headers": [["h", "1"], ["h", None]],
    }
    assert by_place[1, 0]["value"] is None
    assert by_place[1, 1]["value"] == {"base64": "/wA="}
    assert sorted((it | {"topic": ""} for it in one), key=str) == sorted((it | {"topic": ""} for it in two), key=str)


@pytest.mark.parametrize(
    ("args", "stdin", "code", "said"),
    [
        (("-K", ":"), b"a:1\nnone\n", 1, "line 2: no ':' between key and value"),
        (("--format", "json"), b"[1]\n", 1, "line 1: not a record in JSON: it must be an object with a value"),
        (("--format", "json"), b'{"value": 1}\n{"value": 1, "partition": 9}\n', 1, "line 2: the record cannot be"),
        (
            ("-C", "max.request.size=1000"),
            b"x\n" + b"y" * 2000,
            1,
            "line 2: the record cannot be written: the record takes",
        ),
        (("--format", "json"), b'{"value": 1, "headers": {"\\ud800": 1}}', 1, "line 1: the record cannot be written"),
        (("-p", "9"), b"x\n", 1, "line 1: the record cannot be written: bad-"),
        (("-t", "no name"), b"x\n", 2, "'no name' is not a valid topic name: at most 249 letters"),
        (("-C", "nonsense=1"), b"x\n", 2, "nonsense"),
        (("-H", "nonsense"), b"x\n", 2, "is not of the form NAME=VALUE"),
        (("-K", ":", "--format", "json"), b"x\n", 2, "-K needs --format text"),
        (("/no/such/file",), b"", 2, "No such file"),
    ],
)
def test_bad_input_to_produce(
    servers: str, admin: Admin, args: tuple[str, ...], stdin: bytes, code: int, said: str
) -> None:
    topic = () if "-t" in args else ("-t", admin.create("bad"))
    done = headrace("produce", "-b", servers, *topic, *args, stdin=stdin)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


def test_what_came_before_a_bad_line_is_written(servers: str, admin: Admin) -> None:
    topic = admin.create("half")
    done = headrace("produce", "-b", servers, "-t", topic, "-K", ":", stdin=b"a:1\nb:2\nnone\n")
    assert done.code == 1
    assert done.err.startswith(f"2 records written to {topic}\nheadrace: ")
    assert tail(servers, topic, "-o", "beginning", "-e", "-k") == ["a\t1", "b\t2"]


# -- tail ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(servers: str, admin: Admin) -> str:
    """Two partitions with 50 numbered records each, one second apart."""
    topic = admin.create("hundred", 2, retention_ms=-1)
    for partition in (0, 1):
        records = [
            Outgoing(
                b"%d" % number, b"even" if number % 2 == 0 else b"odd", partition, 1_700_000_000_000 + 1000 * number
            )
            for number in range(partition * 50, partition * 50 + 50)
        ]
        write(servers, topic, records)
    return topic


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-o", "beginning", "-e"), range(100)),
        (("-o", "beginning", "-c", "100"), range(100)),
        (("-o", "end", "-e"), []),
        (("-o", "48", "-e"), [48, 49, 98, 99]),
        (("-o", "-1", "-e"), [49, 99]),
        (("-o", "-1000", "-e", "-p", "1"), range(50, 100)),
        (("-o", "@1700000097000", "-e"), [97, 98, 99]),
        (("-o", "@2023-11-14T22:14:55+00:00", "-e"), [95, 96, 97, 98, 99]),
        (("-o", "50", "-e"), []),
        (("-o", "beginning", "-e", "--grep", "^1"), [1, *range(10, 20)]),
        (("-o", "beginning", "-e", "--grep-key", "odd", "--grep", "^9"), [9, 91, 93, 95, 97, 99]),
        (("-o", "beginning", "-p", "0", "-e"), range(50)),
    ],
)
def test_tail_starts_and_ends_where_it_is_told(
    servers: str, hundred: str, args: tuple[str, ...], expected: list[int]
) -> None:
    assert sorted(map(int, tail(servers, hundred, *args))) == list(expected)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-o", "51"), "offset 51 is beyond the end of TOPIC-0 (50), TOPIC-1 (50): starting at the end\n"),
        (("-o", "1000", "-p", "1"), "offset 1000 is beyond the end of TOPIC-1 (50): starting at the end\n"),
        (("-o", "@-1s"), "TOPIC has no record at or after @-1s: starting at the end\n"),
        (("-o", "@2100-01-01"), "TOPIC has no record at or after @2100-01-01: starting at the end\n"),
    ],
)
def test_a_start_beyond_the_end_is_reported(servers: str, hundred: str, args: tuple[str, ...], said: str) -> None:
    done = headrace("tail", "-b", servers, "-t", hundred, *args, "-e")
    assert (done.code, done.text, done.err) == (0, "", said.replace("TOPIC", hundred))


def test_a_start_that_was_deleted_is_reported(servers: str, admin: Admin) -> None:
    topic = admin.create("deleted")
    write(servers, topic, numbered(5))
    admin.delete_records(topic, 3)
    done = headrace("tail", "-b", servers, "-t", topic, "-o", "1", "-e")
    assert (done.code, done.text.split()) == (0, ["3", "4"])
    assert done.err == f"offset 1 was deleted from {topic}-0 (3): starting at the first remaining offset\n"


def test_tail_shows_the_columns_that_are_asked_for(servers: str, admin: Admin) -> None:
    topic = admin.create("columns", retention_ms=-1)
    write(servers, topic, [Outgoing(b"v\xff", b"k", 0, 1_700_000_000_123, [("a", b"1"), ("b", None)]), Outgoing(None)])
    whole = headrace(
        "tail", "-b", servers, "-t", topic, "-o", "0", "-e", "-p", "0", "--keys", "--headers", "--offsets"
    ).out.split(b"\n")
    offset, at, headers, key, value = whole[0].split(b"\t")
    assert (offset, headers, key, value) == (b"0:0", b"a=1,b=", b"k", b"v\xff")
    assert at.startswith(b"2023-11-1")
    assert b".123" in at
    assert tail(servers, topic, "-o", "0", "-e", "--format", "hex", "-k") == ["6b\t76ff", "\t"]
    assert headrace("tail", "-b", servers, "-t", topic, "-o", "0", "-e").out == b"v\xff\n\n"


def test_tail_ends_behind_the_marker_of_a_transaction(servers: str, admin: Admin) -> None:
    from support.brokers.produce import Writer

    topic = admin.create("transaction")
    writer = Writer(servers, transactional_id=unique("tx"))
    writer.producer.begin_transaction()
    writer.send(topic, numbered(3))
    writer.producer.commit_transaction(30)
    assert tail(servers, topic, "-o", "beginning", "-e") == ["0", "1", "2"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_tail_as_a_member_commits_what_it_shows(servers: str, admin: Admin, protocol: str) -> None:
    """It does not commit other records of its polls: the next member gets them."""
    topic, group = admin.create("member", 2), unique("tail")
    write(servers, topic, numbered(20, 1))
    args = ("-g", group, "-o", "beginning", "-C", f"group.protocol={protocol}")
    assert tail(servers, topic, *args, "-c", "4") == ["0", "1", "2", "3"]
    assert tail(servers, topic, *args, "-c", "2", "--grep", "[68]") == ["6", "8"]
    assert tail(servers, topic, *args, "-c", "11") == [str(number) for number in range(9, 20)]


def test_tail_ends_at_the_end_that_was_there_when_it_started(
    servers: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = admin.create("growing", 2)
    write(servers, topic, numbered(3, 0))
    ends = Consumer.end_offsets

    def then_more(*args: Any, **options: Any) -> Any:
        found = ends(*args, **options)
        write(servers, topic, [*numbered(5, 0, start=3), *numbered(5, 1, start=3)])
        return found

    monkeypatch.setattr(Consumer, "end_offsets", then_more)
    assert tail(servers, topic, "-o", "beginning", "-e") == ["0", "1", "2"]


def test_tail_shows_more_than_one_poll_returns(servers: str, admin: Admin) -> None:
    topic = admin.create("many", 3)
    for partition in range(3):
        write(servers, topic, [Outgoing(b"%0100d" % number, partition=partition) for number in range(40_000)])
    started = time.monotonic()
    found = tail(servers, topic, "-o", "beginning", "-e")
    assert len(found) == 120_000
    assert sorted(map(int, found)) == [number for number in range(40_000) for _ in range(3)]
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("-t", "no-such-topic"), 1, "there is no topic 'no-such-topic'"),
        (("-t", "no-such-topic", "-g", "g"), 1, "there is no topic 'no-such-topic'"),
        (("-t", "HUNDRED", "-p", "7"), 2, "has no partition 7: it has 2, from 0 to 1"),
        (("-t", "HUNDRED", "-o", "sideways"), 2, "'sideways' is none of beginning"),
        (("-t", "HUNDRED", "-o", "@yesterday"), 2, "'yesterday' is not a valid time"),
        (("-t", "HUNDRED", "--grep", "("), 2, "is not a valid regular expression"),
        (("-t", "HUNDRED", "-c", "0"), 2, "0 is not in the range"),
        (("-t", "HUNDRED", "-g", "g", "-e"), 2, "-g cannot be combined with -p, -e and most values of -o"),
        (("-t", "HUNDRED", "--format", "xml"), 2, "'xml' is not one of"),
        ((), 2, "Missing option '-t'"),
    ],
)
def test_bad_input_to_tail(servers: str, hundred: str, args: tuple[str, ...], code: int, said: str) -> None:
    done = headrace("tail", "-b", servers, *(hundred if arg == "HUNDRED" else arg for arg in args))
    assert (done.code, done.out) == (code, b"")
    assert said in done.err
