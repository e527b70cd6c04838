"""The cluster of `headrace up`: states that its commands find, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.local import background
from headrace.local.background import lock_path
from headrace.local.filelock import FileLock
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
