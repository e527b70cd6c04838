"""Spark programs in processes of their own, which a test can kill and which do not outlive it.

A driver is a Python process and the JVM that it starts. What it has to tell it prints as lines of JSON; whatever else
it and its workers say is in the same file.
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

STARTS_WITHIN = 200.0
_PROGRAMS = Path(__file__).parents[1] / "programs"


class Driver:
    """`python <program> <job as JSON>`, in the environment of the tests."""

    def __init__(self, program: str, job: dict[str, Any], output: Path, python: str = sys.executable) -> None:
        path = _PROGRAMS / program
        self._output = output
        with output.open("ab") as file:
            self._process = GuardedProcess([python, "-u", str(path), json.dumps(job)], output=file)

    def told(self, name: str, within: float = STARTS_WITHIN) -> Any:
        """The first value that was printed under this name. Fails with all that was said, if it ends without it."""

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
        """Python and the JVM, by SIGKILL."""
        os.kill(self.told("jvm"), signal.SIGKILL)
        self._process.close()

    def end(self, within: float = STARTS_WITHIN) -> int:
        """Waits for it to end by itself, and returns its exit code."""
        assert self._process.wait(within), f"the driver does not end:\n{self.said[-6000:]}"
        return self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its JVM ends when it sees the end of its input.
        self._process.close()


def tell(**values: object) -> None:
    """What a program prints for `told`."""
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
