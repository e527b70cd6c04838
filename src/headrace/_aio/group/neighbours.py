"""Passes hints between the members of one group in one process (`_machines/group/neighbours.py`).

A member that waits to join can also ask which of the others the group waits for: in a notebook, it may be the one that
this one should replace.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Callable

from ..._machines.group.neighbours import HeldUp, News
from ..background import call_if_open

Key = tuple[object, str]  # bootstrap servers and group.id

_lock = threading.Lock()  # guards the next two, and is never held across a call
_members: defaultdict[Key, set[Neighbour]] = defaultdict(set)
_last_news: dict[Key, News] = {}


class Neighbour:
    """A member, from `enter` to `leave`. Both and `tell_others` are called on its loop, `on_hint` as well. `held_up`
    says for how long the group waits for this member's poll(), and is called on any loop."""

    def __init__(
        self, key: Key, on_hint: Callable[[], None], held_up: Callable[[], HeldUp | None] = lambda: None
    ) -> None:
        self._key = key
        self._on_hint = on_hint
        self._held_up = held_up
        self._loop = asyncio.get_running_loop()

    def enter(self) -> None:
        with _lock:
            _members[self._key].add(self)

    def leave(self) -> None:
        with _lock:
            _members[self._key].discard(self)
            if not _members[self._key]:
                del _members[self._key]
                _last_news.pop(self._key, None)

    def who_holds_up(self) -> list[HeldUp]:
        """The other members for whose next poll() the group waits."""
        with _lock:
            others = [other for other in _members.get(self._key, ()) if other is not self]
        return [found for other in others if (found := other._held_up()) is not None]

    def tell_others(self, news: News | None = None) -> None:
        """The group has changed, or is about to. None: it is not known to what."""
        with _lock:
            if news is not None:
                if _last_news.get(self._key) == news:
                    return
                _last_news[self._key] = news
            others = [other for other in _members.get(self._key, ()) if other is not self]
        for other in others:
            call_if_open(other._loop, other._on_hint)


def _after_fork() -> None:
    """Threads and loops of the members are in the parent process only. The lock may have been held there."""
    global _lock
    _lock = threading.Lock()
    _members.clear()
    _last_news.clear()


os.register_at_fork(after_in_child=_after_fork)
