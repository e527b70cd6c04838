"""Clocks of chaos clients that jump, and the true time that their ledgers have."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.clocks import library, set_clock, true_milliseconds, with_clock

_PROGRAM = """
import time
from chaos.clocks import IS_SHIFTED
from chaos.ledger import milliseconds
print(IS_SHIFTED, time.time(), milliseconds() / 1000)
"""


def test_the_true_time_is_that_of_this_machine() -> None:
    before, found, after = time.time() * 1000, true_milliseconds(), time.time() * 1000
    assert before - 1 <= found <= after + 1


@pytest.mark.skipif(library() is None, reason="a library to preload cannot be built here")
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_clock_jumps_and_the_ledger_s_does_not(tmp_path: Path, seconds: int) -> None:
    file = tmp_path / "clock"
    set_clock(file, seconds)
    command = with_clock([sys.executable, "-c", _PROGRAM], file)
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    is_shifted, clock, ledger = output.stdout.split()
    assert is_shifted == "True"
    assert abs(float(clock) - float(ledger) - seconds) < 2
    assert abs(float(ledger) - time.time()) < 10


@pytest.mark.skipif(library() is None, reason="a library to preload cannot be built here")
def test_a_running_process_sees_the_jump_and_keeps_its_waits(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    program = "import sys, threading, time\nwait = threading.Event().wait\n"
    program += "for _ in sys.stdin: began = time.monotonic(); wait(0.05); time.sleep(0.05); "
    program += "print(time.time(), time.monotonic() - began, flush=True)"
    command = with_clock([sys.executable, "-c", program], file)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seconds in (0, 3600, -3600, 0):
            set_clock(file, seconds)
            print(file=process.stdin, flush=True)
            clock, waited = map(float, process.stdout.readline().split())
            assert abs(clock - time.time() - seconds) < 10
            assert 0.1 <= waited < 10
        process.stdin.close()
        assert process.wait(30) == 0
