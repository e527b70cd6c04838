"""No test leaves a thread behind that receives from a broker: each one holds a socket, and the broker's side of it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

_ENDS_WITHIN = 30.0  # seconds. The thread ends at once; a busy machine may hold it up


def receiving_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headrace-receive")}


def threads_that_stay(threads: set[threading.Thread]) -> set[threading.Thread]:
    deadline = time.monotonic() + _ENDS_WITHIN
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {thread for thread in threads if thread.is_alive()}


@pytest.fixture(autouse=True)
def no_receiving_thread_is_left() -> Iterator[None]:
    """Is set up before the fixtures of the test, so it ends after them. Consumers of wider fixtures exist before it."""
    before = receiving_threads()
    yield
    _close_idle_consumers()
    if left := receiving_threads() - before:
        assert not threads_that_stay(left)


def _close_idle_consumers() -> None:
    """A Spark task that a test runs in this process keeps its consumer for the next task, as in a Python worker."""
    reader = sys.modules.get("headrace.spark.worker.reader")
    if reader is not None:
        while reader._idle_consumers:
            reader._idle_consumers.popitem()[1].close()
