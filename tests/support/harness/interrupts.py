"""Ctrl-C by brute force: interrupts at every point where a signal handler may raise.

CPython calls signal handlers when a function or generator starts or resumes (but not when close() or throw() resumes
it), at the end of each loop iteration, and after a call of a C function. `Interrupter` counts these points in the
frames of the library and raises at the chosen one.
"""

from __future__ import annotations

import dis
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Self

import pytest

import headrace

_LIBRARY = os.path.dirname(headrace.__file__) + os.sep
_CALLED_BY_C = {"<genexpr>", "__init__", "__new__"}
_CHECKED = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
_OF_COROUTINES = {"GET_AWAITABLE", "GET_YIELD_FROM_ITER"}  # the call before created a coroutine: not a C function
_RESUMED_AFTER, _AFTER_YIELD_FROM = 3, 2  # RESUME's argument: its lower two bits (Python 3.13 has another one)
_INSTRUCTIONS: dict[Any, dict[int, _Instruction]] = {}


def skip_if_locks_stay_held() -> None:
    """For tests that raise in signal handlers. In Python 3.14, `with lock:` can leave the lock held if a handler raises
    just after it was acquired (CPython issue 148874)."""
    if sys.version_info[:2] == (3, 14):
        pytest.skip("a signal handler that raises can leave a lock held in Python 3.14 (CPython issue 148874)")


class Interrupter:
    """`with Interrupter(at=3):` raises KeyboardInterrupt at the third point. Python then stops tracing, so only another
    Interrupter inside can interrupt the library's handling of the interrupt."""

    def __init__(self, at: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        skip_if_locks_stay_held()
        self._left = at
        self._error = error
        self._before: dict[FrameType, _Instruction] = {}
        # CPython borrows the tracer while it creates the frame to trace. That can start the garbage collector, a
        # finalizer of the library is then interrupted, and the tracer would be freed before it is called.
        self._tracer = self._called

    @property
    def has_raised(self) -> bool:
        return self._left == 0

    def __enter__(self) -> Self:
        self._traced = sys.gettrace()
        sys.settrace(self._tracer)
        return self

    def __exit__(self, *problem: object) -> None:
        sys.settrace(self._traced)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_back is not None and frame.f_code.co_name not in _CALLED_BY_C:
            self._before.pop(frame.f_back, None)  # no check after a call of a Python function
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return None
        # In this order: Python 3.13 traces the opcodes of a frame only if the frame has a tracer by then.
        frame.f_trace = self._step
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if _instruction(frame).resumes:
            self._count()
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            before, now = self._before.pop(frame, None), _instruction(frame)
            self._before[frame] = now
            # This raises one instruction too late, which makes no difference if both have the same handler.
            if before and before.name in _CHECKED and before.handler == now.handler and now.name not in _OF_COROUTINES:
                self._count()
        elif event == "return":
            self._before.pop(frame, None)
        return self._step

    def _count(self) -> None:
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                raise self._error("interrupted")


class _Instruction(NamedTuple):
    name: str
    handler: int | None
    """The offset of the exception handler of this instruction."""
    resumes: bool = False
    """Whether a function or generator starts or resumes here. There is no check after an `await` or `yield from`."""


def _instruction(frame: FrameType) -> _Instruction:
    code = frame.f_code
    if code not in _INSTRUCTIONS:
        table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        _INSTRUCTIONS[code] = {
            each.offset: _Instruction(
                each.opname,
                next((entry.target for entry in table if entry.start <= each.offset < entry.end), None),
                each.opname == "RESUME" and each.arg is not None and each.arg & _RESUMED_AFTER < _AFTER_YIELD_FROM,
            )
            for each in dis.get_instructions(code)
        }
    return _INSTRUCTIONS[code].get(frame.f_lasti, _Instruction("", None))


def interrupted_everywhere(
    scenario: Callable[[int], bool], most: int = 20_000, every: int = 1, more_than: int = 0, within: float = 60.0
) -> int:
    """Run the scenario with 1, 2, 3, … until it returns that no interrupt was raised. Return the number of points.

    How many points there are can depend on which thread comes first. If a scenario ends after `more_than` points or
    fewer, the next one tries the same point again, for `within` seconds."""
    deadline, at = time.monotonic() + within, 1
    while at < most:
        if scenario(at):
            at += every
        elif at - 1 > more_than:
            return at - 1
        elif time.monotonic() > deadline:
            raise AssertionError(f"only {at - 1} points were met in {within:g} s, instead of more than {more_than}")
    raise AssertionError(f"interrupts are still raised at point {most}")
