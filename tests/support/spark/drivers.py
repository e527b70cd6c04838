"""Spark programs as processes that a test can kill and that do not outlive it.

A driver is a Python process and the JVM that it starts. It reports values as lines of JSON. All other output of the
driver and its workers is in the same file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.local.process import GuardedProcess
from support.harness.waiting import wait_for
from support.spark.home import fast_start

STARTS_WITHIN = 200.0
_PROGRAMS = Path(__file__).parents[1] / "programs"


class Driver:
    """Runs `python <program> <job as JSON>` in the environment of the tests."""

    def __init__(self, program: str, job: dict[str, Any], output: Path, python: str = sys.executable) -> None:
        command = [python, "-u", str(_PROGRAMS / program), json.dumps(job)]
        if python == sys.executable:
            command = ["env", *(f"{name}={value}" for name, value in fast_start().items()), *command]
        self._output = output
        with output.open("ab") as file:
            self._process = GuardedProcess(command, output=file)

    def reported(self, name: str, within: float = STARTS_WITHIN) -> Any:
        """Wait for the first value reported under this name. Fail with the driver's output if it ends without it."""

        def look() -> list[Any]:
            has_ended = not self._process.is_alive()
            found = [line[name] for line in self._lines() if name in line]
            assert found or not has_ended, f"the driver ended without {name}"
            return found

        try:
            return wait_for(f"{name} of the driver", look, within)[0]
        except AssertionError as late:
            raise AssertionError(f"{late}:\n{self.said[-6000:]}") from None

    def _lines(self) -> list[dict[str, Any]]:
        lines = [line for line in self.said.splitlines() if line.startswith('{"') and line.endswith("}")]
        return [json.loads(line) for line in lines]

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def kill(self) -> None:
        """Kill Python and the JVM with SIGKILL."""
        os.kill(self.reported("jvm"), signal.SIGKILL)
        self._process.close()

    def end(self, within: float = STARTS_WITHIN) -> int:
        """Wait until it ends by itself; return its exit code."""
        assert self._process.wait(within), f"the driver does not end:\n{self.said[-6000:]}"
        return self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its JVM ends at the end of its input.
        self._process.close()


def report(**values: object) -> None:
    """Report values to the test, for `Driver.reported`."""
    print(json.dumps(values), flush=True)


def local_settings(extra: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.authenticate.socketTimeout": "120s",
        **dict(extra),
    }
