"""The cluster of `headrace up`: states that its commands find, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import broker
from headrace.local import background
from headrace.local.background import Status, lock_path
from headrace.local.filelock import FileLock
from headrace.local.ivy import DownloadProgress
from support.harness.shell import headrace


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    return tmp_path


@pytest.fixture
def supervised() -> Iterator[None]:
    """A supervisor that holds its lock."""
    with FileLock(lock_path()) as lock:
        assert lock.acquire(0)
        yield


@pytest.mark.usefixtures("supervised")
def test_down_fails_if_the_cluster_is_still_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_STOP_WITHIN", 0.1)
    done = headrace("down")
    assert (done.code, done.text) == (1, "")
    assert done.err.startswith("headrace: the cluster is still starting after 0.1 s, so it was not stopped: try again")


def test_down_without_a_cluster_says_so() -> None:
    done = headrace("down")
    assert (done.code, done.text, done.err) == (0, "nothing is running\n", "")


def test_commands_for_a_crashed_cluster_fail_at_once() -> None:
    background.state_path().write_text(Status("running", "127.0.0.1:1", log="/kept/broker.log").to_json())
    done = headrace("topics")
    assert (done.code, done.text) == (1, "")
    assert done.err == (
        "headrace: the cluster of `headrace up` has crashed (log: /kept/broker.log): `headrace up` restarts it, or "
        "name another one with -b\n"
    )


@pytest.mark.parametrize("version", ["3.9.0", "1.0", "0.11", "latest", "4"])
def test_up_rejects_a_version_that_is_too_old_before_a_download(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(broker, "prepare", None)
    done = headrace("up", "--kafka-version", version)
    assert (done.code, done.text) == (2, "")
    assert f"'{version}' is not a release of Kafka, 4.0 or newer" in done.err


def test_without_a_terminal_a_download_is_one_line_for_each_product(capsys: pytest.CaptureFixture[str]) -> None:
    with broker.download_bar() as show:
        for count in range(1, 4):
            show(DownloadProgress("resolving", count))
            show(DownloadProgress("downloading", count, 3))
        show(DownloadProgress("preparing", 0))
        show(DownloadProgress("resolving", 1, product="Apicurio Registry"))
    assert capsys.readouterr().err.splitlines() == [
        "downloading Apache Kafka for its first use ...",
        "downloading Apicurio Registry for its first use ...",
    ]
