"""A cache of a registry's responses.

Schemas never change under an id or a version, so they stay until `size` others were used since. An unknown or refused
schema is remembered for a second only: it may be registered or allowed at any moment. Errors of the registry are not
kept.

If several threads ask for the same key, one fetches and the others wait for it. `lock` guards everything and is never
held while fetching or waiting.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from ...errors import SchemaRegistryError
from .._registry import RegisteredSchema

_UNKNOWN_FOR = 1.0


class _Fetch:
    """A fetch under way. The thread that started it sets schema or error, then the event."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.schema: RegisteredSchema | None = None
        self.error: Exception | None = None


class SchemaCache:
    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[Hashable, tuple[float, SchemaRegistryError]] = OrderedDict()
        self._fetches: dict[Hashable, _Fetch] = {}

    def get(self, key: Hashable, fetch: Callable[[], RegisteredSchema], deadline: float) -> RegisteredSchema:
        """The schema of this key; `fetch()` it if it is not in the cache and no other thread fetches it."""
        while True:
            with self._lock:
                if (found := self._look_up(key)) is not None:
                    return found
                if under_way := self._fetches.get(key):
                    mine = None
                else:
                    mine = self._fetches[key] = _Fetch()
            if mine is not None:
                return self._carry_out(key, mine, fetch)
            assert under_way is not None
            if not under_way.done.wait(max(0.0, deadline - time.monotonic())):
                raise SchemaRegistryError(
                    "the schema registry did not respond in time: another thread is waiting for it. "
                    "The call can be repeated",
                    retriable=True,
                )
            if under_way.schema is not None:
                return under_way.schema
            if under_way.error is not None:
                # A copy: several threads raise it, and each adds its own traceback.
                raise copy.copy(under_way.error) from under_way.error.__cause__
            # The other thread was interrupted (Ctrl-C): take over.

    def known(self, key: Hashable) -> RegisteredSchema | None:
        with self._lock:
            return self._look_up(key)

    def put(self, key: Hashable, schema: RegisteredSchema) -> None:
        with self._lock:
            self._store(key, schema)

    def forget_unknown(self, key: Hashable) -> None:
        with self._lock:
            self._unknown.pop(key, None)

    def renew_after_fork(self) -> None:
        """In the child: the threads that fetch, or hold the lock, do not exist here."""
        self._lock = threading.Lock()
        self._fetches.clear()

    def _carry_out(self, key: Hashable, mine: _Fetch, fetch: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        try:
            mine.schema = fetch()
        except Exception as error:
            mine.error = error
            raise
        finally:
            with self._lock:
                # After a fork, the key may belong to a fetch of the child.
                if self._fetches.get(key) is mine:
                    del self._fetches[key]
                if mine.schema is not None:
                    self._store(key, mine.schema)
                elif isinstance(mine.error, SchemaRegistryError) and mine.error.scope == "schema":
                    self._unknown[key] = time.monotonic() + _UNKNOWN_FOR, mine.error
                    while len(self._unknown) > self._size:
                        self._unknown.popitem(last=False)
            mine.done.set()
        return mine.schema

    def _look_up(self, key: Hashable) -> RegisteredSchema | None:
        if (found := self._found.get(key)) is not None:
            self._found.move_to_end(key)
            return found
        if (unknown := self._unknown.get(key)) is not None:
            until, error = unknown
            if time.monotonic() < until:
                raise copy.copy(error)
            del self._unknown[key]
        return None

    def _store(self, key: Hashable, schema: RegisteredSchema) -> None:
        self._unknown.pop(key, None)
        self._found[key] = schema
        self._found.move_to_end(key)
        while len(self._found) > self._size:
            self._found.popitem(last=False)
