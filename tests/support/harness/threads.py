"""No test leaves a thread of a client behind. Each one holds a socket, or keeps its client alive."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

_ENDS_WITHIN = 30.0  # seconds; the thread ends at once, but a busy machine may delay it


def client_threads() -> set[threading.Thread]:
    """Without those that a Ctrl-C in `Thread.start()` has kept from starting: Python lists them for ever."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("headrace") and thread.ident}


def threads_that_stay(threads: set[threading.Thread]) -> set[threading.Thread]:
    deadline = time.monotonic() + _ENDS_WITHIN
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {thread for thread in threads if thread.is_alive()}


@pytest.fixture(autouse=True)
def no_thread_of_a_client_is_left() -> Iterator[None]:
    """This fixture is set up before those of the test and ends after them. Consumers of wider fixtures do not count."""
    before = client_threads()
    yield
    _close_idle_consumers()
    if left := client_threads() - before:
        assert not threads_that_stay(left)


def _close_idle_consumers() -> None:
    """A Spark task in this process keeps its consumer for the next task, as in a Python worker."""
    reader = sys.modules.get("headrace.spark.worker.reader")
    if reader is not None:
        while reader._idle_consumers:
            reader._idle_consumers.popitem()[1].close()
