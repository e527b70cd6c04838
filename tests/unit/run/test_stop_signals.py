"""Signals that stop `run()`, and signals that the process inherited as ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from headrace._aio.run.signals import stopped_by_signals
from support.members.subprocesses import python


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_run_and_restores_the_usual_handler(number: signal.Signals) -> None:
    stopped = threading.Event()
    usual = signal.getsignal(number)
    with stopped_by_signals(stopped.set):
        assert signal.getsignal(number) is not usual
        signal.raise_signal(number)
        assert stopped.is_set()
        assert signal.getsignal(number) == usual, "a second signal has its usual effect"
    assert signal.getsignal(number) == usual


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_does_not_stop_run(number: signal.Signals) -> None:
    stopped = threading.Event()
    signal.signal(number, signal.SIG_IGN)
    with stopped_by_signals(stopped.set):
        signal.raise_signal(number)
    assert not stopped.is_set()
    assert signal.getsignal(number) is signal.SIG_IGN


def test_programs_of_tests_can_be_interrupted_although_sigint_is_ignored() -> None:
    """Otherwise tests that send SIGINT fail when pytest runs in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = python("""
        import time
        print("ready", flush=True)
        time.sleep(60)  # until it is interrupted
    """)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        _, said = process.communicate()
    assert (process.returncode, said.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
