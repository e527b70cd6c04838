"""`headrace lag --watch` while the brokers are away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli import lag_queries
from headrace.cli.lag_queries import Sample
from headrace.errors import AuthenticationError, HeadraceError, NetworkError, RequestTimeoutError
from support.harness.shell import Done, headrace

Looks = Callable[..., None]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What each look at the group finds: a sample, or an error."""

    def set_looks(*found: Sample | HeadraceError) -> None:
        left = list(found)

        async def group_sample(*_: object) -> Sample:
            this = left.pop(0)
            if isinstance(this, HeadraceError):
                raise this
            return this

        monkeypatch.setattr(lag_queries, "group_sample", group_sample)

    return set_looks


def watch(times: int) -> Done:
    options = ("--watch", "--interval", "0.1", "--times", str(times), "--format", "json")
    return headrace("lag", "-b", "127.0.0.1:1", "-g", "billing", *options)


def timeout() -> HeadraceError:
    error = RequestTimeoutError("no answer within 10 s")
    error.__cause__ = NetworkError("127.0.0.1:1: connection refused")
    return error


NOTHING = Sample(0.0, ())


def test_an_error_after_the_first_look_is_shown_and_the_watch_continues(looks: Looks) -> None:
    looks(NOTHING, timeout(), NOTHING)
    done = watch(3)
    assert (done.code, len(done.text.splitlines())) == (0, 2)
    assert done.err == "billing: 127.0.0.1:1: connection refused. Trying again in 0.1 s\n"


def test_an_error_at_the_first_look_ends_the_watch(looks: Looks) -> None:
    looks(timeout())
    done = watch(3)
    assert (done.code, done.text) == (1, "")
    assert "connection refused" in done.err


def test_an_error_at_the_last_look_ends_the_watch(looks: Looks) -> None:
    """The lag is unknown at the end, so a threshold cannot be compared."""
    looks(NOTHING, timeout())
    assert watch(2).code == 1


def test_a_rejected_login_ends_the_watch(looks: Looks) -> None:
    looks(NOTHING, AuthenticationError("wrong password", "authenticate"), NOTHING)
    done = watch(3)
    assert (done.code, "wrong password" in done.err) == (1, True)
