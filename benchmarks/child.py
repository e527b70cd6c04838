"""The entry point of child processes: `python -m benchmarks.child <what> <job as JSON>` prints JSON.

`what` is `<module>.<function>`. Modules are imported only here, so each process loads one client library.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from .readers import Job, Meter
from .writers import WriteJob, WriteMeter

_READERS = f"{__package__}.readers"
_WRITERS = f"{__package__}.writers"


def command(what: str, job: Job | WriteJob) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.child", what, json.dumps(dataclasses.asdict(job))]


def find(what: str) -> Callable[..., Any]:
    """The function with this name. Raises ImportError or AttributeError."""
    module, _, function = what.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    return found


def perform(what: str, fields: dict[str, Any]) -> Any:
    function = find(what)
    if function.__module__.startswith(_WRITERS):
        return _write(function, WriteJob(**fields))
    job = Job(**fields)
    if not function.__module__.startswith(_READERS):
        return function(job)
    meter = Meter(job.records)
    function(job, meter)
    assert meter.reading is not None, "a reader must return when the meter has seen the last record"
    return dataclasses.asdict(meter.reading)


def _write(function: Callable[[WriteJob, WriteMeter], None], job: WriteJob) -> Any:
    meter = WriteMeter()
    function(job, meter)
    assert meter.writing is not None, "a writer must stop the meter"
    return dataclasses.asdict(meter.writing)


if __name__ == "__main__":
    print(json.dumps(perform(sys.argv[1], json.loads(sys.argv[2]))))
