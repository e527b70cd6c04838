"""Reports that topics which a client reads do not exist. `_machines/missing_topics.py` decides when.

Before the first report of a topic, one request for the names of all topics finds one with a similar name. Further
reports repeat that. The pattern of a KIP-848 member, which only the coordinator evaluates, is compared with all names
before each report of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from .._machines.missing_topics import MissingTopics, Wanted, may_match, similar_names
from .._protocol.codes import NONE
from .._protocol.messages import METADATA
from ..config.client import ClientConfig
from ..errors import ClosedError, HeadraceError
from ..events import Event, TopicsMissing
from .network.client import Client


class MissingTopicReports:
    """Of one client, on its loop. `wanted` is called with the client's lock held, `report` without it."""

    def __init__(
        self,
        client: Client[ClientConfig],
        group_id: str | None,
        wanted: Callable[[], Wanted],
        report: Callable[[Event], None],
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._report = report
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._machine = MissingTopics(group_id)
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._task: asyncio.Task[None] | None = None
        self._similar: dict[str, str] = {}  # of each topic that was looked for; empty if none is similar

    def look_soon(self) -> None:
        """On the loop's thread, after a change: one look for all changes that have come by then."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def describe(self) -> list[str]:
        """What was reported, for metrics(). Called with the lock held."""
        return self._machine.describe()

    def _look(self) -> None:
        self._is_due = False
        if self._client.connections.is_closed:
            return
        with self._client.lock:
            wanted = self._wanted()
            events = self._machine.look(wanted, self._client.cluster, time.monotonic())
            pause = self._machine.next_look - time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pause < float("inf"):
            self._timer = self._loop.call_later(max(0.0, pause), self._look)
        for event in events:
            if not isinstance(event, TopicsMissing):
                self._report(event)
            elif self._task is None or self._task.done():  # else a request takes longer than a minute
                is_remote = wanted.pattern is not None and wanted.pattern.is_remote
                task = asyncio.create_task(self._report_missing(event, is_remote=is_remote), name="missing topics")
                self._task = self._watch(task)

    async def _report_missing(self, event: TopicsMissing, *, is_remote: bool) -> None:
        unknown = [name for name in event.topics if name not in self._similar]
        pattern = event.pattern if is_remote else None
        if unknown or pattern is not None:
            try:
                names = await self._all_names()
            except ClosedError:
                return
            except HeadraceError:  # the topics are missing nevertheless; of the pattern, nothing is known
                event = dataclasses.replace(event, pattern=None) if is_remote else event
            else:
                # Comparing with many thousands of names takes long, and heartbeats have to go on.
                self._similar |= await asyncio.to_thread(similar_names, unknown, names)
                if pattern is not None and may_match(pattern, names):
                    with self._client.lock:
                        self._machine.matches(pattern)
                    event = dataclasses.replace(event, pattern=None)
        if event.topics or event.partitions or event.pattern is not None:
            suggestions = {name: other for name in event.topics if (other := self._similar.get(name))}
            self._report(dataclasses.replace(event, suggestions=suggestions))

    async def _all_names(self) -> list[str]:
        answer = await self._client.fetch_all_metadata(METADATA)
        return [topic.name for topic in answer.topics if topic.error_code == NONE and not topic.is_internal]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
