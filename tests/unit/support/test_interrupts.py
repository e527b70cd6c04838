"""The harness that interrupts the library everywhere."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from support.harness.interrupts import Interrupter

_IN_THE_LIBRARY = str(Path(headrace.__file__).with_name("finalized.py"))


def test_an_interrupted_finalizer_leaves_the_interpreter_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector can call it while CPython is about to call the tracer (TypeError or a crash with 3.11)."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: ignored.append(type(each.exc_value)))
    names: dict[str, Any] = {}
    exec(compile("class Finalized:\n    def __del__(self): pass", _IN_THE_LIBRARY, "exec"), names)
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        for _ in range(20):
            cycle = names["Finalized"]()
            cycle.itself = cycle
            del cycle
            with Interrupter(at=1) as interrupter:
                gc.set_threshold(1)
                gc.enable()
                _called()
                _called()
                gc.disable()
            assert interrupter.has_raised
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert ignored == [KeyboardInterrupt] * 20


def _called() -> None:
    pass
