"""The Spark of `headrace run`: a process of its own, which reports to this one in a file of events."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import HeadraceError
from ..local.errors import storage_error
from .elapsed import Elapsed
from .formatting import say
from .spark_errors import Failures, cause_in

if TYPE_CHECKING:
    from ..local.process import GuardedProcess
    from ..ui.activity import PipelineActivity

OTHER_STATE = "choose another directory with --state"
_LOOK_EVERY = 0.1


class PipelineError(HeadraceError):
    """A run failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineOutcome:
    """The last event of the process: see `pipeline_process.py`."""

    tables: list[dict[str, Any]]
    spark_seconds: float
    seconds: float
    shown: dict[str, Any] | None
    chart: dict[str, Any] | None
    topic: str | None
    """A topic that the pipeline writes to, whose last records are shown."""
    location: str | None
    """The directory of the main table; None if it is not on this machine."""


class SparkProcess:
    """Starts Spark at once. It runs the pipeline when it gets the settings of Kafka: see `run`."""

    def __init__(self, spec: Path, state: Path, master: str, configuration: Mapping[str, str]) -> None:
        self._log, self._events = state / "run.log", state / "events.jsonl"
        self._settings, self._task = state / "settings.json", state / "task.json"
        self._scratch = Path(tempfile.mkdtemp(prefix="headrace-run-"))
        try:
            self._process = self._start(spec, state, master, configuration)
        except BaseException as error:
            self._delete_files()
            if isinstance(error, OSError):
                raise storage_error(error, Path(error.filename or state), "the file", OTHER_STATE) from error
            raise

    def _start(self, spec: Path, state: Path, master: str, configuration: Mapping[str, str]) -> GuardedProcess:
        from ..local.process import GuardedProcess
        from .pipeline_process import Task

        self._settings.unlink(missing_ok=True)
        self._events.write_text("")
        places = (str(path.absolute()) for path in (spec, state, self._events, self._settings, self._scratch))
        _write_secret(self._task, dataclasses.asdict(Task(dict(configuration), master, *places)))
        with self._log.open("wb") as output:
            command = [sys.executable, "-m", "headrace.cli.pipeline_process", str(self._task.absolute())]
            return GuardedProcess(command, output=output, remove=self._scratch)

    def run(
        self,
        settings: Mapping[str, str],
        begun: float,
        activity: PipelineActivity | None,
        check: Callable[[], None] | None = None,
    ) -> PipelineOutcome:
        """Run the pipeline with these settings of Kafka. Raises PipelineError with the cause in one line. Calls `check`
        several times per second; what it raises ends the run."""
        draft = self._settings.with_suffix(".draft")
        _write_secret(draft, settings)
        draft.replace(self._settings)
        failures = Failures()

        def on_wait() -> None:
            if check is not None:
                check()
            if activity is not None:
                activity.refresh()

        for event in follow(self._events, self._process, begun, on_wait):
            if activity is not None:
                activity.on_event(event)
            failures.add(cause_in(event.get("message", "")))
            failures.add(event.get("failed", ""))
            if "warning" in event:
                say(event["warning"])
            if "tables" in event:
                return PipelineOutcome(**event)
        cause = failures.cause or "Spark exited without an error message"
        raise PipelineError(f"the pipeline failed: {cause} (log: {self._log})")

    def close(self) -> None:
        """Kill Spark, whose JVM would take seconds to end. What it has committed is on disk, and the next run repeats
        the rest. May be called again."""
        self._process.kill_group()
        self._process.close()
        self._delete_files()

    def _delete_files(self) -> None:
        for secret in (self._settings, self._task):
            secret.unlink(missing_ok=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_secret(path: Path, contents: Any) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(contents, file)


def _nothing() -> None:
    pass


def follow(
    events: Path, process: Any, begun: float, on_wait: Callable[[], None] = _nothing
) -> Iterator[dict[str, Any]]:
    """The events of the process, until it ends. Shows the current step, and how many seconds the command has run. Calls
    `on_wait` ten times per second while there are none."""
    from rich.console import Console

    console = Console(stderr=True)
    shown = Elapsed("starting Spark", begun)
    with console.status(shown), events.open() as lines:
        over, line = False, ""
        while True:
            line += (more := lines.readline())
            if line.endswith("\n"):  # otherwise the rest of the line is not written yet
                event, line = json.loads(line), ""
                if said := event.get("stage") or event.get("message"):
                    shown.text = said.splitlines()[0]
                    if not console.is_terminal and "stage" in event:
                        say(f"{shown} ...")
                yield event
            elif over and not more:
                return
            else:
                over = process.wait(_LOOK_EVERY)
                on_wait()
