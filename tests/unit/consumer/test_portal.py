"""Starting the consumer's own thread while an interrupt (Ctrl-C) arrives."""

from __future__ import annotations

import threading

import pytest

from headrace._aio.portal import Portal


@pytest.mark.timeout(20)
def test_an_interrupt_while_a_portal_starts_is_raised_and_the_next_call_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside Thread.start(), the interrupt surfaces as RuntimeError about a lock that is not held."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")  # as Condition does

    portal = Portal("interrupted")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.call(lambda: "never")
    monkeypatch.undo()
    assert portal.call(lambda: "works") == "works"
    portal.close(10.0)


def test_a_portal_whose_thread_cannot_start_raises_and_can_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    portal = Portal("refused")
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        portal.call(lambda: "never")
    monkeypatch.undo()
    assert portal.call(lambda: "works") == "works"
    portal.close(10.0)
