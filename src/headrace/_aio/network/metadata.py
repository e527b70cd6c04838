"""Metadata of the cluster that is kept fresh.

- It is refreshed when it is old, when an answer shows that it is stale, and when a topic is new here. Refreshes that
  are requested while one is in flight are combined into the next one.
- When no known broker answers, the bootstrap servers are asked again.

Everything runs on one event loop. Other threads use the cluster view, too: it is changed under `lock`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._chance import chance
from ..._machines.backoff import REFUSAL
from ..._machines.cluster import Cluster
from ..._net.calls import Reply
from ..._net.connection import Connection
from ..._protocol.codes import NONE, is_retriable, kafka_error
from ..._protocol.messages import METADATA, Api
from ...config.client import ClientConfig
from ...errors import ClosedError, HeadraceError, NetworkError
from ...types import Node
from .connections import Connections
from .retries import Retries

log = logging.getLogger(__name__)


class MetadataUpdater:
    """`on_metadata` is called on the loop, under `lock`, after each refresh; `on_trouble` with the error of a refresh
    that a retry does not help, and with None after others. `watch` gets the task, which must not end by itself."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        cluster: Cluster,
        lock: threading.Lock,
        *,
        retries: Retries,
        on_metadata: Callable[[], None],
        on_trouble: Callable[[HeadraceError | None], None],
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
    ) -> None:
        self._config = config
        self._connections = connections
        self._cluster = cluster
        self._lock = lock
        self._retries = retries
        self._on_metadata = on_metadata
        self._on_trouble = on_trouble
        self._watch = watch
        self._topics: set[str] | None = set()  # None: all topics
        self._refresh_wanted = asyncio.Event()
        self._wants_all = False  # a refresh of all topics is requested ...
        self._queried: set[str] = set()  # topics of queries, which need not be topics of this client
        self._wanted: set[str] = set()  # ... or of these: a client that writes to many topics learns them one by one
        self._last_of_all = -math.inf
        self._last_refresh = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._still_incomplete: set[str] = set()  # to ask for again
        self._incomplete = 0  # answers in a row without a leader or a topic
        self._keeper: asyncio.Task[None] | None = None
        self._rotation = itertools.count(chance.randrange(1000))

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def _is_closed(self) -> bool:
        return self._connections.is_closed

    def want_topics(self, topics: Iterable[str] | None) -> None:
        """Keeps the metadata of these topics (None: of all) fresh from now on, and of no others."""
        before, self._topics = self._topics, None if topics is None else set(topics)
        if before is None:
            return
        if self._topics is None:
            self._last_refresh = 0.0  # somebody waits for the new topics: without the pause after the last refresh
            self.refresh_soon()
        elif new := self._topics - before:
            self._last_refresh = 0.0
            self._ask_for(new)

    def refresh_soon(self, also: Iterable[str] = ()) -> None:
        """Refreshes the metadata of all topics of this client, and of `also`, which a query may have asked for."""
        self._queried.update(also)
        self._wants_all = True
        self._ask_for(())

    def _ask_for(self, names: Iterable[str]) -> None:
        """Refreshes the metadata of these topics soon, not necessarily that of the others."""
        self._wanted.update(names)
        self._ensure_keeper()
        self._refresh_wanted.set()

    def _ensure_keeper(self) -> None:
        if self._keeper is None and not self._is_closed and self._connections.refusal is None:
            self._keeper = self._watch(asyncio.create_task(self._keep_fresh(), name="metadata"))

    async def _keep_fresh(self) -> None:
        failures = 0
        while not self._is_closed:
            try:
                async with asyncio.timeout(self._config.metadata_max_age_ms / 1000):
                    await self._refresh_wanted.wait()
            except TimeoutError:
                self._wants_all = True
            if failures == 0 and (since := self._loop.time() - self._last_refresh) < self._retries.pause(1):
                await asyncio.sleep(self._retries.pause(1) - since)
            self._refresh_wanted.clear()
            try:
                await self._refresh()
                failures = 0
            except HeadraceError as error:
                failures += 1
                log.info("metadata refresh failed (attempt %d): %s", failures, error)
                self._on_trouble(None if error.retriable else error)
                if error is self._connections.refusal:
                    self._keeper = None
                    return
                self.refresh_soon()
                await asyncio.sleep(self._retries.pause(failures))
                continue
            self._last_refresh = self._loop.time()
            self._on_trouble(None)
            self._connections.close_idle()

    async def _refresh(self) -> None:
        asked = None if self._topics is None else frozenset(self._topics)
        now = self._loop.time()
        if self._wants_all or now - self._last_of_all >= self._config.metadata_max_age_ms / 1000:
            self._last_of_all = now
        elif asked is not None:
            asked &= self._wanted
        if asked is not None:
            asked |= self._queried
        self._wants_all = False
        self._wanted.clear()
        self._queried.clear()
        answer = await self.request(asked)
        with self._lock:
            self._cluster.apply(answer, complete=asked is None, names=asked)
            self._on_metadata()
            names = self._cluster.topics if asked is None else asked
            leaderless = {
                name
                for name in names
                if (topic := self._cluster.topics.get(name))
                and any(each.leader.node not in self._cluster.brokers for each in topic.partitions.values())
            }
            missing = {name: code for name in names if (code := self._cluster.topic_errors.get(name)) is not None}
        if not leaderless and not missing:
            self._incomplete = 0
            return
        # An election is in progress, a topic is being created, or a right is missing: ask again after a pause.
        self._incomplete += 1
        pause = self._retries.pause(1 + self._incomplete)
        if not leaderless and set(missing.values()) == {ErrorCode.topic_authorization_failed}:
            pause = REFUSAL.seconds(self._incomplete, chance.random())
        if self._again is not None:
            self._again.cancel()  # otherwise each requested refresh would schedule one more
        self._still_incomplete |= leaderless | missing.keys()
        self._again = self._loop.call_later(pause, self._ask_again)

    def _ask_again(self) -> None:
        names, self._still_incomplete = self._still_incomplete, set()
        self._ask_for(names)

    async def fetch_unknown_topics(self, names: Iterable[str]) -> None:
        """Fetches metadata of those of these topics that are unknown, once. Missing topics stay unknown."""
        with self._lock:
            missing = sorted(name for name in names if name not in self._cluster.topics)
        if missing:
            await self.fetch_metadata(missing)

    async def fetch_metadata(
        self, names: Iterable[str] | None, ids: Iterable[uuid.UUID] = (), *, may_create: bool = True
    ) -> Any:
        """Fetches metadata now, and applies it to the cluster view."""
        names, ids = None if names is None else frozenset(names), frozenset(ids)
        answer = await self.request(names, ids, may_create=may_create)
        with self._lock:
            self._cluster.apply(answer, names=names, ids=ids)
            self._on_metadata()
        return answer

    async def fetch_all_metadata(self, api: Api) -> Any:
        """Fetches metadata of all topics. Only its brokers are applied to the cluster view."""
        answer = await self.request(None, api=api)
        with self._lock:
            self._cluster.apply(answer, names=())
        return answer

    async def request(
        self,
        names: Iterable[str] | None,
        ids: Iterable[uuid.UUID] = (),
        *,
        may_create: bool = True,
        api: Api = METADATA,
    ) -> Any:
        """One Metadata answer for these topics (None: all), from the first broker in turn that answers."""
        by_id = [{"topic_id": each, "name": None} for each in ids]
        fields = {
            "topics": None if names is None else [*({"topic_id": None, "name": name} for name in names), *by_id],
            "allow_auto_topic_creation": may_create and self._config.allow_auto_create_topics,
            "include_topic_authorized_operations": False,
        }
        last: HeadraceError | None = None
        hopeless = True
        for node in self._candidates():
            try:
                connection = await self._connections.connect(node.host, node.port)
                reply = await self._ask_metadata(connection, api, fields)
            except ClosedError:
                raise
            except HeadraceError as error:  # even if that is no broker at all: another may be
                if error is self._connections.refusal:
                    raise
                hopeless &= not error.retriable
                last = error
                continue
            code = getattr(reply.body, "error_code", NONE)
            if code == ErrorCode.rebootstrap_required:
                last, hopeless = kafka_error(code, f"Metadata to {connection.host}"), False
                continue
            if code != NONE and not is_retriable(code):
                raise kafka_error(code, f"Metadata to {connection.host}")
            return reply.body
        if last is not None and hopeless:
            raise last
        raise NetworkError(f"no broker could be reached: {last}") from last

    async def _ask_metadata(self, connection: Connection, api: Api, fields: Mapping[str, Any]) -> Reply:
        """A broker that answers ApiVersions may still reject the next request: if it expects a login, it closes the
        connection."""
        what = (connection.host, "Metadata")
        self._connections.tries(what)
        try:
            reply = await connection.call(api, fields)
        except HeadraceError as error:
            if not self._is_closed:
                self._connections.warn(what, error)
            raise
        self._connections.reached(what)
        return reply

    def _candidates(self) -> list[Node]:
        """Known brokers first, in the order of their failures; then the bootstrap servers. Throttled brokers are the
        last."""
        known = list(self._cluster.brokers.values())
        turn = next(self._rotation)
        known = known[turn % len(known) :] + known[: turn % len(known)] if known else []
        known.sort(key=lambda node: self._connections.failures((node.host, node.port)))
        addresses = {(node.host, node.port) for node in known}
        bootstrap = [Node(-1, *address) for address in self._config.bootstrap_servers if address not in addresses]
        if known and self._config.metadata_recovery_strategy != "rebootstrap":
            bootstrap = []
        return sorted(known + bootstrap, key=lambda node: self._connections.is_throttled((node.host, node.port)))

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
