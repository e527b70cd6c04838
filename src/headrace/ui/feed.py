"""What the streams of all browsers show: the watcher's latest status as documents, each made once for each pass.

Everything runs on the thread of the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import Protocol

from ..monitor.model import ClusterView, GroupHistory, GroupKey, WatchStatus
from .activity import Activity
from .documents import (
    activity_document,
    group_document,
    groups_document,
    status_head,
    topic_document,
    topics_document,
)
from .patches import Document
from .sparklines import Sparkline, sparkline

_CHECK_EVERY = 15.0  # seconds for which a stream may be silent


class GroupHistories(Protocol):
    def group(self, key: GroupKey) -> GroupHistory: ...


class ClusterSource(Protocol):
    """What a feed needs of `monitor.watcher.Watcher`."""

    @property
    def status(self) -> WatchStatus: ...
    @property
    def history(self) -> GroupHistories: ...
    async def wait(self, passes: int, timeout: float) -> WatchStatus:
        """Returns after pass number `passes`, or when the time is up."""


@dataclasses.dataclass(frozen=True, slots=True)
class ViewName:
    """Which page: its kind, and the name of its group or topic."""

    kind: str
    name: str = ""
    is_checkpoint: bool = False


class Feed:
    """`async with` follows the watcher."""

    def __init__(
        self, source: ClusterSource, interval: float, activity: Activity | None = None, allows_changes: bool = False
    ) -> None:
        self._source = source
        self._interval = interval
        self._allows_changes = allows_changes
        self._activity = activity
        self._version = 0
        self._changed = asyncio.Condition()
        self._documents: dict[ViewName, Document | None] = {}
        self._sparklines: dict[GroupKey, Sparkline] = {}
        self._following: asyncio.Task[None] | None = None
        self._notifying: set[asyncio.Task[None]] = set()
        self.is_closed = False

    async def __aenter__(self) -> Feed:
        if self._activity is not None:
            self._activity.attach(asyncio.get_running_loop(), self.notify)
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    def close(self) -> None:
        """Ends all streams."""
        self.is_closed = True
        self.notify()

    def notify(self) -> None:
        """There is something new: documents are rebuilt, and streams send the changes."""
        self._version += 1
        self._documents.clear()
        task = asyncio.get_running_loop().create_task(self._wake())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _follow(self) -> None:
        done = 0
        while True:
            status = await self._source.wait(done, _CHECK_EVERY)
            if (now_done := status.passes + status.failures) > done:
                done = now_done
                self._draw_sparklines()
                self.notify()

    def _draw_sparklines(self) -> None:
        view = self._source.status.view
        found = {}
        for group in () if view is None else view.groups:
            points = self._source.history.group(group.key).points
            if (drawn := sparkline(points, time.time(), self._sparklines.get(group.key))) is not None:
                found[group.key] = drawn
        self._sparklines = found

    def document(self, name: ViewName) -> Document | None:
        """None if there is no such group or topic. Only the head, as long as the cluster has not answered."""
        if name not in self._documents:
            self._documents[name] = self._make(name)
        return self._documents[name]

    def _make(self, name: ViewName) -> Document | None:
        status = self._source.status
        head = status_head(status, self._interval)
        head["activity"] = None if self._activity is None else self._activity.title
        head["changes"] = self._allows_changes
        if name.kind == "activity":
            body = None if self._activity is None else activity_document(self._activity, status.view)
        elif status.view is None:
            return Document(head)
        else:
            body = self._body(name, status.view)
        return None if body is None else Document({**head, **body.head}, body.rows)

    def _body(self, name: ViewName, view: ClusterView) -> Document | None:
        if name.kind == "groups":
            histories = {it.key: self._source.history.group(it.key) for it in view.groups}
            return groups_document(view, histories, self._sparklines)
        if name.kind == "topics":
            return topics_document(view)
        if name.kind == "group":
            key = GroupKey(name.is_checkpoint, name.name)
            found = view.group(key)
            history = self._source.history.group(key)
            return None if found is None else group_document(found, history, self._sparklines.get(key))
        topic = view.topics.get(name.name)
        return None if topic is None else topic_document(topic, view.groups)

    async def versions(self) -> AsyncGenerator[bool]:
        """True for every new version, the first at once; False if there was none for a while. Ends with `close()`,
        after the last version."""
        seen = -1
        while True:
            is_new, seen, is_last = self._version != seen, self._version, self.is_closed
            yield is_new
            if is_last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY), self._changed:
                    while self._version == seen:
                        await self._changed.wait()
