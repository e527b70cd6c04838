"""What the command that offers the page is doing: a pipeline, a demo.

The command publishes what it does from its own thread; the feed shows the latest document on the server's. A document
is never changed: publishing replaces it, which is one assignment.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..monitor.batches import BatchView, read_batches
from .patches import Document

_MOST_POINTS = 240
_POINT_EVERY = 0.5  # seconds
_FLOW = re.compile(r"Flow (?P<flow>\S+) (?:is|has) (?P<state>[A-Z]+)\.")  # a message of Spark


class Activity:
    """`title` is the name of its page. `groups` are shown there: their names in the cluster, by their labels; and the
    queries whose checkpoints are in the directory `checkpoints`."""

    def __init__(self, title: str, groups: Mapping[str, str] | None = None, checkpoints: Path | None = None) -> None:
        self.title = title
        self.groups = dict(groups or {})
        self.checkpoints = checkpoints
        self._document = Document({"title": title})
        self._listener: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None

    @property
    def document(self) -> Document:
        return self._document

    def attach(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        self._listener = (loop, on_change)

    def publish(self, head: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._document = Document({"title": self.title, **head}, rows or {})
        if self._listener is not None:
            loop, on_change = self._listener
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(on_change)


class PipelineActivity(Activity):
    """A run of `headrace run`: its steps, its tables, and the micro-batches of its queries, by their checkpoints."""

    def __init__(self, title: str, checkpoints: Path) -> None:
        super().__init__(title, checkpoints=checkpoints)
        self._checkpoints = checkpoints
        self._tables: dict[str, dict[str, Any]] = {}
        self._begun = time.time()
        self._head: dict[str, Any] = {"kind": "pipeline", "since": self._begun, "over": False}
        self._looked_at = 0.0

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event of the pipeline's process; see `pipeline_process.py`."""
        for name in ("stage", "message", "failed"):
            if name in event:
                self._head[name] = event[name]
        for table in event.get("counts", event.get("tables", ())):
            self._set_table(table["name"], before=table["before"], rows=table["rows"])
        if found := _FLOW.match(event.get("message", "")):
            self._set_table(found["flow"].rpartition(".")[2], state=found["state"].lower())
        self.refresh(is_due=True)

    def _set_table(self, name: str, **fields: Any) -> None:
        unknown = {"name": name, "state": None, "before": 0, "rows": None}
        self._tables[name] = {**self._tables.get(name, unknown), **fields}

    def refresh(self, *, is_due: bool = False) -> None:
        """Look for new batches, at most twice a second. Called while the command waits for events."""
        now = time.monotonic()
        if is_due or now - self._looked_at > _POINT_EVERY:
            self._looked_at = now
            batches = read_batches(self._checkpoints, since=self._begun)
            head = {**self._head, "tables": [self._tables[name] for name in sorted(self._tables)]}
            self.publish(head, {f"{it.query}/{it.number}": _batch_row(it) for it in batches})

    def end(self, failed: str | None = None) -> None:
        self._head |= {"over": True, "stage": "failed" if failed else "finished", "failed": failed}
        self.refresh(is_due=True)


def _batch_row(batch: BatchView) -> dict[str, Any]:
    return {
        "query": batch.query,
        "batch": batch.number,
        "rows": batch.records,
        "exact": batch.is_exact,
        "at": round(batch.planned, 1),
        "seconds": None if batch.finished is None else round(batch.finished - batch.planned, 1),
    }


class DemoActivity(Activity):
    """A demo: its current step, and how far behind each of its consumers is, now and until now."""

    def __init__(self, title: str, groups: Mapping[str, str], labels: Mapping[str, str]) -> None:
        super().__init__(title, groups)
        self._begun = time.time()
        self._labels = dict(labels)
        self._series: dict[str, list[list[float]]] = {name: [] for name in labels}
        self._last = 0.0
        self._behind: Mapping[str, float | None] = {}

    def on_step(self, text: str, behind: Mapping[str, float | None]) -> None:
        """Called many times per second; published twice."""
        now = time.time()
        if now - self._last < _POINT_EVERY:
            return
        self._last = now
        self._behind = dict(behind)
        for name, value in behind.items():
            if value is not None:
                self._series[name] = [*self._series[name], [round(now - self._begun, 1), round(value, 2)]][
                    -_MOST_POINTS:
                ]
        self._publish(text, behind, is_over=False)

    def end(self) -> None:
        self._publish("finished", self._behind, is_over=True)

    def _publish(self, text: str, behind: Mapping[str, float | None], *, is_over: bool) -> None:
        readers = [
            {"name": name, "label": label, "behind": _rounded(behind.get(name)), "series": self._series[name]}
            for name, label in self._labels.items()
        ]
        self.publish({"kind": "demo", "since": self._begun, "stage": text, "readers": readers, "over": is_over})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
