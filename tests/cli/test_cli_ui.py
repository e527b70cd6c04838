"""`headrace ui` as a process: its address, its secrets, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator

import pytest

from headrace.ui import server
from headrace.ui.server import listen
from support.harness.page_client import PageClient
from support.harness.retries import quickest
from support.harness.shell import headrace

AWAY = ("-b", "127.0.0.1:1", "--timeout", "0.5")


@contextlib.contextmanager
def start(*args: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the link that it shows."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "headrace", "ui", *AWAY, "--port", "0", *args]
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True, env=os.environ | environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"the page is on (http://\S+)\n", line)
            assert found is not None, (line, process.communicate(timeout=30))
            yield process, found[1]
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_page_within_two_seconds_also_with_open_streams(number: int, code: int) -> None:
    """In at least one of several tries, since the machine may be busy."""

    def seconds_of_the_end() -> float:
        with start() as (process, url):
            with PageClient(url).events("groups") as first, PageClient(url).events("topics") as second:
                assert first.next() is not None
                assert second.next() is not None
                begun = time.monotonic()
                process.send_signal(number)
                assert process.wait(60) == code
                took = time.monotonic() - begun
                while first.next() is not None:
                    pass
            assert process.stderr is not None
            said = [line for line in process.stderr.read().splitlines() if "cannot read the cluster" not in line]
            assert [line for line in said if line] == ["Ctrl-C ends it"]
        return took

    assert quickest(seconds_of_the_end, 2.5) < 2.5


def test_a_token_is_made_up_and_shown_once() -> None:
    with start("--host", "0.0.0.0", "--token") as (process, link):
        url, _, token = link.partition("login#")
        client = PageClient(f"http://127.0.0.1:{url.rstrip('/').rpartition(':')[2]}/")
        assert len(token) >= 32
        assert client.get("/events?view=groups").status == 401
        assert client.log_in(token).status == 204
        process.terminate()
        assert process.wait(10) == 143
        assert process.stderr is not None
        said = process.stderr.read()
        assert "it is not encrypted" in said
        assert token not in said


def test_a_password_of_the_environment_is_not_shown() -> None:
    with start("--host", "0.0.0.0", HEADRACE_UI_PASSWORD="sword-fish") as (process, link):
        client = PageClient(f"http://127.0.0.1:{link.rstrip('/').rpartition(':')[2]}/")
        assert client.get("/events?view=groups").status == 401
        assert client.get("/", Authorization="Bearer sword-fish").status == 200
        process.terminate()
        assert process.wait(10) == 143
        assert process.stderr is not None
        assert "sword-fish" not in link + process.stderr.read()


def test_changes_need_a_token_which_is_made_up() -> None:
    with start("--allow-changes", HEADRACE_UI_PASSWORD="", HEADRACE_UI_TOKEN="") as (process, link):
        url, _, token = link.partition("login#")
        assert len(token) >= 32
        assert PageClient(url).ask("POST", "/api/groups/delete", {"content-type": "application/json"}).status == 401
        assert PageClient(url).get("/", Authorization=f"Bearer {token}").status == 200
        process.terminate()
        assert process.wait(10) == 143
        assert process.stderr is not None
        assert "--allow-changes needs a token" in process.stderr.read()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser has opened. The page ends at once."""

    async def end(*_: object) -> None: ...

    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr(server, "serve_page", end)
    return found


def test_changes_with_a_password_need_no_token(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_UI_PASSWORD", "sword-fish")
    done = headrace("ui", *AWAY, "--port", "0", "--allow-changes")
    assert (done.code, "login#" in done.text, "needs a token" in done.err) == (0, False, False)


def test_the_browser_is_not_started_with_the_token_which_other_users_would_see(opened: list[str]) -> None:
    done = headrace("ui", *AWAY, "--port", "0", "--token", "--open")
    link = done.text.removeprefix("the page is on ").strip()
    assert "login#" in link
    assert opened == [link.partition("login#")[0]]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com"])
def test_other_machines_need_a_password_or_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_UI_PASSWORD", "")
    done = headrace("ui", *AWAY, "--host", host, "--port", "0")
    assert done.code == 2
    assert done.err.startswith(
        f"headrace: --host {host} can be reached from other machines, so the page needs a password or a token: "
        "add --token, which generates one, or --password, or set HEADRACE_UI_PASSWORD or HEADRACE_UI_TOKEN"
    )


def test_a_password_cannot_be_asked_for_without_a_terminal() -> None:
    done = headrace("ui", *AWAY, "--password")
    assert (done.code, "without one, set HEADRACE_UI_PASSWORD" in done.err) == (2, True)


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = headrace("ui", *AWAY, "--port", str(port))
    assert (done.code, done.out) == (1, b"")
    assert done.err == (
        f"headrace: cannot listen on 127.0.0.1:{port}: the port is in use. "
        "Choose another one with --port; 0 finds a free one\n"
    )


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = headrace("ui", *AWAY)
    assert (done.code, done.err) == (1, "headrace: the page needs uvicorn: pip install 'headrace[ui]'\n")
