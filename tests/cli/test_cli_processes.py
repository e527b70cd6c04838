"""The command line as a process: closed pipes, Ctrl-C, stack traces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from headrace.cli.app import run
from support.brokers.admin import Admin
from support.brokers.produce import numbered, write
from support.harness.shell import headrace

COMMAND = [sys.executable, "-m", "headrace"]


# Like a background command of a script, with SIGINT ignored.
IN_A_SCRIPT = ["bash", "-c", "trap '' INT; exec \"$@\"", "bash"]


@contextlib.contextmanager
def start(*args: str, by: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*by, *COMMAND, *args], stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()  # a process that has not ended by itself would be waited for without a deadline


@pytest.mark.parametrize("count", [20_000, 1], ids=["more than a pipe holds", "a single record"])
def test_tail_ends_when_its_reader_has_had_enough(servers: str, admin: Admin, count: int) -> None:
    topic = admin.create("pipe")
    write(servers, topic, numbered(count, size=100))
    with start("tail", "-b", servers, "-t", topic, "-o", "beginning", "--timeout", "60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0" * 100 + b"\n", process.communicate(timeout=60)
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [("topics",), ("groups",), ("topics", "--help"), ("--help",)])
def test_a_command_whose_output_nobody_reads_ends_quietly(
    servers: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", servers)
    monkeypatch.setattr(sys, "argv", ["headrace", *command])
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as out, mock.patch.object(sys, "stdout", out), pytest.raises(SystemExit) as end:
        run()
    assert (end.value.code, capfd.readouterr().err) == (0, "")


def test_a_member_whose_reader_has_had_enough_commits_what_was_shown(servers: str, admin: Admin) -> None:
    """Records that were not shown are not committed."""
    topic = admin.create("pipe")
    write(servers, topic, numbered(10))
    with start("tail", "-b", servers, "-t", topic, "-g", f"{topic}-group", "-o", "beginning") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(90) == 0
    done = headrace("tail", "-b", servers, "-t", topic, "-g", f"{topic}-group", "-o", "beginning", "-c", "1")
    assert done.text == "0\n"


@pytest.mark.parametrize("by", [[], IN_A_SCRIPT], ids=["in a terminal", "in the background of a script"])
def test_ctrl_c_ends_tail_while_it_follows(servers: str, admin: Admin, by: list[str]) -> None:
    topic = admin.create("followed")
    with start("tail", "-b", servers, "-t", topic, "-o", "beginning", "--timeout", "60", by=by) as process:
        assert process.stdout is not None
        for number in range(3):
            write(servers, topic, numbered(1, start=number))
            assert process.stdout.readline() == b"%d\n" % number
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest, said) == (130, b"", b"\n")  # ends the line where the terminal shows ^C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_member_that_is_signalled_commits_and_leaves(servers: str, admin: Admin, number: signal.Signals) -> None:
    topic = admin.create("signalled")
    write(servers, topic, numbered(3))
    group = f"{topic}-group"
    only_at_the_end = ("-C", "auto.commit.interval.ms=600000")
    member = ("tail", "-b", servers, "-t", topic, "-g", group, "-o", "beginning", *only_at_the_end)
    with start(*member, by=IN_A_SCRIPT) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        write(servers, topic, numbered(1, start=3))
        assert process.stdout.readline() == b"3\n"  # the earlier records are done; this one may not be yet
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert headrace("groups", "-b", servers, "-g", group, "--format", "json").json["members"] == []
    found = headrace("lag", "-b", servers, "-g", group, "--format", "json").json
    assert [it["next"] >= 3 for it in found["partitions"]] == [True]


def test_a_closed_terminal_does_not_end_what_runs_under_nohup(servers: str, admin: Admin) -> None:
    topic = admin.create("followed")
    ignored = ["bash", "-c", "trap '' HUP; exec \"$@\"", "bash"]
    with start("tail", "-b", servers, "-t", topic, "-o", "beginning", "--timeout", "60", by=ignored) as process:
        assert process.stdout is not None
        for number in range(2):
            write(servers, topic, numbered(1, start=number))
            assert process.stdout.readline() == b"%d\n" % number
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_ctrl_c_ends_lag_while_it_watches(servers: str, admin: Admin) -> None:
    topic = admin.create("watched")
    write(servers, topic, numbered(3))
    assert (
        subprocess.run(
            [*COMMAND, "tail", "-b", servers, "-t", topic, "-g", f"{topic}-group", "-o", "beginning", "-c", "3"],
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        == b"0\n1\n2\n"
    )
    with start("lag", "-b", servers, "-g", f"{topic}-group", "-w", "--interval", "0.1", "--format", "json") as process:
        assert process.stdout is not None
        assert b'"lag": 0' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"\n")


@pytest.mark.parametrize(("debug", "trace"), [((), False), (("--debug",), True)])
def test_stack_traces_are_shown_only_when_asked_for(servers: str, debug: tuple[str, ...], trace: bool) -> None:
    with start(*debug, "topics", "-b", servers, "-t", "no-such-topic") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (b"Traceback" in said) is trace
    assert b"there is no topic 'no-such-topic'" in said
