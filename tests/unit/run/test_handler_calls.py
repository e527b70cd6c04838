"""HandlerCalls: the machine that detects overdue handler calls."""

from __future__ import annotations

import math

import pytest

from headrace._aio.run.options import check_timeout
from headrace._machines.run.handler_calls import HandlerCall, HandlerCalls
from headrace.errors import ConfigError


class Somewhere:
    """A worker that does nothing."""

    def stack(self) -> str:
        return ""

    def abandon(self) -> None: ...


def begin(calls: HandlerCalls[str], job: str, now: float, **changes: float) -> HandlerCall[str]:
    return calls.begin(job, Somewhere(), now, **({"since": now} | changes))  # type: ignore[arg-type]


def found(calls: HandlerCalls[str], now: float) -> list[tuple[str, bool, bool]]:
    return [(each.call.job, each.is_news, each.is_final) for each in calls.look(now)]


# `reported`: the reports about a call that starts at 100 and never ends, as (time, is_news, is_final).
@pytest.mark.parametrize(
    ("timeout", "limit", "begun", "reported"),
    [
        (None, 10, {}, [(110, True, True)]),
        (3, 10, {}, [(103, True, False), (106, False, False), (109, False, False), (110, False, True)]),
        (3, 10, {"grace": 1}, [(104, True, False), (107, False, False), (110, False, True)]),
        (3, 10, {"is_timed": False}, [(110, True, True)]),
        (3, 10, {"since": 95}, [(103, True, False), (105, False, True)]),
        (3, 10, {"since": 80}, [(100, True, True)]),
        (30, 10, {}, [(110, True, True)]),
    ],
)
def test_a_handler_call_is_reported_when_it_is_overdue(
    timeout: float | None, limit: float, begun: dict[str, float], reported: list[tuple[float, bool, bool]]
) -> None:
    calls: HandlerCalls[str] = HandlerCalls(timeout, limit)
    begin(calls, "a", 100, **begun)
    found_at = []
    for now in range(100, 130):
        assert calls.next_check <= now or not calls.look(now)
        found_at += [(now, is_news, is_final) for _, is_news, is_final in found(calls, now)]
    assert found_at == reported
    assert calls.next_check == math.inf


# `reported`: when a call that starts at 100 and never ends is reported as slow.
@pytest.mark.parametrize(
    ("timeout", "begun", "reported"),
    [
        (None, {}, [108]),
        (None, {"since": 96}, [104]),
        (9, {}, [108]),
        (3, {}, []),  # it is abandoned before
        (3, {"is_timed": False}, [108]),
    ],
)
def test_a_handler_call_near_the_limit_is_reported_once_as_slow(
    timeout: float | None, begun: dict[str, float], reported: list[float]
) -> None:
    calls: HandlerCalls[str] = HandlerCalls(timeout, 10)
    call = begin(calls, "a", 100, **begun)
    slow = []
    for now in range(100, 130):
        calls.look(now)
        slow += [now for each in calls.slow(now) if each is call]
        assert calls.next_check > now
    assert slow == reported
    assert call.is_slow is bool(reported)


def test_a_slow_handler_call_counts_when_it_ends() -> None:
    calls: HandlerCalls[str] = HandlerCalls(None, 10)
    call = begin(calls, "a", 0)
    assert (found(calls, 8), calls.slow(8)) == ([], [call])
    assert calls.end(call)


def test_a_handler_call_that_was_reported_does_not_count_when_it_ends() -> None:
    calls: HandlerCalls[str] = HandlerCalls(3, 10)
    first, second = begin(calls, "a", 0), begin(calls, "b", 1)
    assert found(calls, 3) == [("a", True, False)]
    assert calls.abandoned == 1
    assert not calls.end(first)
    assert calls.end(second)
    assert calls.abandoned == 0
    assert found(calls, 99) == []


def test_a_handler_call_without_its_timeout_is_reported_only_when_stuck() -> None:
    calls: HandlerCalls[str] = HandlerCalls(3, 10)
    call = begin(calls, "a", 0)
    assert found(calls, 3) == [("a", True, False)]
    call.forget_timeout()
    assert found(calls, 9) == []
    assert found(calls, 10) == [("a", False, True)]
    assert (calls.abandoned, calls.end(call), calls.abandoned) == (1, False, 0)


def test_the_oldest_overdue_handler_call_is_reported_first() -> None:
    calls: HandlerCalls[str] = HandlerCalls(3, 10)
    for number, job in enumerate("abcdefgh"):
        begin(calls, job, number / 10)
    assert [job for job, _, _ in found(calls, 5)] == list("abcdefgh")


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (None, None),
        (0.5, None),
        (30, None),
        (0, ConfigError),
        (-1, ConfigError),
        (math.nan, ValueError),
        (math.inf, ConfigError),
        ("5", TypeError),
        (True, TypeError),
    ],
)
def test_invalid_handler_timeouts_are_refused(timeout: float | None, error: type[Exception] | None) -> None:
    if error is None:
        check_timeout(timeout)
        return
    with pytest.raises(error, match=r"timeout.* must be a"):
        check_timeout(timeout)
