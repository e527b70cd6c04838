"""The connections of one consumer to its brokers, and metadata that is kept fresh.

- One connection for each broker and purpose, because a broker serves the requests of a connection one at a
  time: a long-polling fetch would block everything behind it.
- A broker that cannot be reached is not tried again before a backoff, which doubles. Other brokers are asked meanwhile.
  After a few seconds a warning names the broker and the reason, and again every minute.
- Metadata is refreshed when it is old, when an answer shows that it is stale, and when a topic is new here.
  Refreshes that are requested while one is in flight are combined into the next one.
- When no known broker answers, the bootstrap servers are asked again.
- A login that a broker rejects is not repeated, neither there nor at another broker: after several wrong passwords an
  account is locked, for everybody. The rejection ends this client.

Everything runs on one event loop. Other threads use the cluster view, too: it is changed under `lock`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.backoff import REFUSAL, Backoff
from ..._machines.cluster import Cluster
from ..._machines.outages import PATIENCE, Outages
from ..._net.connection import Connection, Reply
from ..._net.frame_pool import FramePool
from ..._protocol.codes import NONE, is_retriable, kafka_error
from ..._protocol.messages import METADATA, Api
from ..._security.access import Access
from ...config.consumer import ConsumerConfig
from ...errors import AuthenticationError, ClosedError, HeadraceError, NetworkError, RequestTimeoutError
from ...types import Node

log = logging.getLogger(__name__)

_REBOOTSTRAP_REQUIRED = 129


class Client:
    """Sends requests to brokers. `on_metadata` is called on the loop, under `lock`, after each refresh. `on_trouble` is
    called on the loop when no broker accepts requests and a retry does not help, and with None when that is over."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        lock: threading.Lock,
        on_metadata: Callable[[], None],
        watch: Callable[[asyncio.Task[None]], asyncio.Task[None]],
        on_trouble: Callable[[HeadraceError | None], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.lock = lock
        self._on_metadata = on_metadata
        self._watch = watch  # for tasks that must not end by themselves
        self._on_trouble = on_trouble
        self._is_in_trouble = False
        self._access = Access(config)
        self._frames = FramePool()
        self._refusal: AuthenticationError | None = None
        self._connections: dict[tuple[object, str], Connection] = {}
        self._opening: dict[tuple[object, str], asyncio.Task[Connection]] = {}
        self._failures: dict[object, int] = {}
        self._refusals: dict[object, HeadraceError] = {}
        self._not_before: dict[object, float] = {}
        self._outages = Outages()
        self._reconnect = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._retry = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._setup = Backoff(config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms)
        self._topics: set[str] | None = set()  # None: all topics
        self._refresh_wanted = asyncio.Event()
        self._refreshed: asyncio.Future[None] | None = None
        self._last_refresh = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._incomplete = 0  # answers in a row without a leader or a topic
        self._keeper: asyncio.Task[None] | None = None
        self._rotation = itertools.count(random.randrange(1000))
        self.closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def connection_count(self) -> int:
        return sum(connection.is_open for connection in self._connections.values())

    def retry_pause(self, failures: int) -> float:
        return self._retry.seconds(failures, random.random())

    # -- requests --------------------------------------------------------------------------------------------

    async def call(
        self,
        node: int,
        api: Api,
        fields: Mapping[str, Any],
        *,
        purpose: str = "",
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Sends one request to one broker. Raises NetworkError, RequestTimeoutError, UnsupportedVersionError."""
        connection = await self.connection(node, purpose)
        return await connection.call(api, fields, highest=highest, timeout=timeout)

    async def connection(self, node: int, purpose: str = "") -> Connection:
        """An open connection to the broker. Connects if there is none, after the broker's backoff."""
        broker = self.cluster.brokers.get(node)
        if broker is None:
            raise NetworkError(f"broker {node} is not part of the cluster, or no longer")
        return await self._connect((broker.host, broker.port), broker.host, broker.port, purpose)

    async def _connect(self, where: object, host: str, port: int, purpose: str) -> Connection:
        if self.closed:
            raise ClosedError("this consumer is closed")
        key = (where, purpose)
        connection = self._connections.get(key)
        if connection is not None:
            if connection.is_open:
                return connection
            self._look_for_refusal(connection.failure)
        if self._refusal is not None:
            raise self._refusal
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._open(key, where, host, port), name=f"connect {host}:{port}")
            self._opening[key] = opening
            opening.add_done_callback(lambda task: self._opened(key, task))
        # Shielded: several callers may wait for it, and the cancellation of one must not affect the others.
        return await asyncio.shield(opening)

    def _opened(self, key: tuple[object, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, even if no caller waits for it any more

    async def _open(self, key: tuple[object, str], where: object, host: str, port: int) -> Connection:
        if (pause := self._not_before.get(where, 0.0) - self.loop.time()) > 0:
            await asyncio.sleep(pause)
        failures = self._failures.get(where, 0)
        setup_timeout = self._setup.seconds(failures + 1, random.random())
        name = f"{host}:{port}"
        self._outages.tries(name, self.loop.time())
        reason = f"{name} does not answer: it cannot be reached, or it is not the port of a Kafka broker"
        timer = self.loop.call_later(PATIENCE, self._warn, name, reason)
        try:
            connection = await Connection.open(host, port, self.config, setup_timeout, self._access, self._frames)
        except HeadraceError as error:
            self._warn(name, error)
            self._look_for_refusal(error)
            self._failures[where] = failures + 1
            self._refusals[where] = error
            pause = self._reconnect.seconds(failures + 1, random.random())
            self._not_before[where] = self.loop.time() + pause
            raise
        finally:
            timer.cancel()
        if self.closed:  # meanwhile, by `disconnect`, which knows only the connections that were open
            connection.close()
            raise ClosedError("this consumer is closed")
        self._reached(name)
        self._failures.pop(where, None)
        self._refusals.pop(where, None)
        self._not_before.pop(where, None)
        self._connections[key] = connection
        log.debug("connected to %s:%s%s", host, port, f" for {key[1]}" if key[1] else "")
        return connection

    def _warn(self, what: str | tuple[str, str], reason: HeadraceError | str) -> None:
        """About a broker that cannot be used: after a few seconds, then once a minute. Polls keep waiting."""
        seconds = self._outages.to_warn_of(what, self.loop.time())
        if seconds is not None:
            log.warning("%s (for %.0f s now; retrying)", reason, seconds)

    def _reached(self, what: str | tuple[str, str]) -> None:
        seconds = self._outages.ends(what, self.loop.time())
        if seconds is not None:
            log.info("%s answers again, after %.0f s", what if isinstance(what, str) else what[0], seconds)

    def _look_for_refusal(self, error: HeadraceError | None) -> None:
        if isinstance(error, AuthenticationError) and error.is_final and self._refusal is None:
            self._refusal = error
            log.error("giving up: %s", error)
            self._tell_of_trouble(error)

    def _tell_of_trouble(self, error: HeadraceError | None) -> None:
        if error is not None or self._is_in_trouble:
            self._is_in_trouble = error is not None
            self._on_trouble(error)

    async def with_retries(self, what: str, deadline: float, attempt: Callable[[], Any]) -> Any:
        """Awaits `attempt()` until it succeeds, fails for good, or the deadline passes.

        Raises RequestTimeoutError with the last error as its cause when time is up.
        """
        failures = 0
        last: HeadraceError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                if not isinstance(error, HeadraceError):
                    last = last or self._obstacle()
                    reason = f"Last error: {last}" if last else f"Waiting for {self._awaited()}"
                    raise RequestTimeoutError(f"{what}: not done in time. {reason}") from last
                last = error
            except HeadraceError as error:
                last = error
            if not last.retriable:
                raise last
            failures += 1
            pause = self.retry_pause(failures)
            if self.loop.time() + pause >= deadline:
                raise RequestTimeoutError(f"{what}: not done in time. Last error: {last}") from last
            await asyncio.sleep(pause)

    def _obstacle(self) -> HeadraceError | None:
        """Why this client cannot reach a broker: preferably one that it is about to retry."""
        refused = [self._refusals[where] for where, _ in self._opening if where in self._refusals]
        return next(iter(refused or self._refusals.values()), None)

    def _awaited(self) -> str:
        """The brokers that have not answered yet, for an error message."""
        busy = [connection.host for connection in self._connections.values() if connection.in_flight]
        return ", ".join(sorted({*busy, *(task.get_name() for task in self._opening.values())})) or "its turn"

    # -- metadata --------------------------------------------------------------------------------------------

    def want_topics(self, topics: Iterable[str] | None) -> None:
        """Keeps the metadata of these topics (None: of all) fresh from now on, and of no others."""
        before, self._topics = self._topics, None if topics is None else set(topics)
        if before is not None and (self._topics is None or self._topics - before):
            self.refresh_soon()

    def refresh_soon(self) -> None:
        self._ensure_keeper()
        self._refresh_wanted.set()

    async def refresh(self) -> None:
        """Waits for metadata that is requested after this call. Raises the error if that fails."""
        if self._refusal is not None:
            raise self._refusal
        self._ensure_keeper()
        waiter = self._refreshed
        if waiter is None:
            waiter = self._refreshed = self.loop.create_future()
        self._refresh_wanted.set()
        await asyncio.shield(waiter)

    def _ensure_keeper(self) -> None:
        if self._keeper is None and not self.closed and self._refusal is None:
            self._keeper = self._watch(asyncio.create_task(self._keep_fresh(), name="metadata"))

    async def _keep_fresh(self) -> None:
        failures = 0
        while not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.metadata_max_age_ms / 1000):
                    await self._refresh_wanted.wait()
            if failures == 0 and (since := self.loop.time() - self._last_refresh) < self.retry_pause(1):
                await asyncio.sleep(self.retry_pause(1) - since)
            self._refresh_wanted.clear()
            waiter, self._refreshed = self._refreshed, None
            try:
                await self._fetch_metadata()
                failures = 0
            except HeadraceError as error:
                failures += 1
                log.info("metadata refresh failed (attempt %d): %s", failures, error)
                if waiter is not None and not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()
                self._tell_of_trouble(None if error.retriable else error)
                if error is self._refusal:
                    self._end_waiting(error)
                    self._keeper = None
                    return
                self._refresh_wanted.set()
                await asyncio.sleep(self.retry_pause(failures))
                continue
            self._last_refresh = self.loop.time()
            self._tell_of_trouble(None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
            self._close_idle()

    async def _fetch_metadata(self) -> None:
        asked = None if self._topics is None else frozenset(self._topics)
        answer = await self.metadata(asked)
        with self.lock:
            self.cluster.apply(answer, complete=asked is None, names=asked)
            self._on_metadata()
            names = self.cluster.topics if asked is None else asked
            leaderless = any(
                partition.leader.node not in self.cluster.brokers
                for name in names
                if (topic := self.cluster.topics.get(name))
                for partition in topic.partitions.values()
            )
            missing = {code for name in names if (code := self.cluster.topic_errors.get(name)) is not None}
        if not leaderless and not missing:
            self._incomplete = 0
            return
        # An election is in progress, a topic is being created, or a right is missing: ask again after a pause.
        self._incomplete += 1
        pause = self.retry_pause(1 + self._incomplete)
        if not leaderless and missing == {ErrorCode.topic_authorization_failed}:
            pause = REFUSAL.seconds(self._incomplete, random.random())
        if self._again is not None:
            self._again.cancel()  # otherwise each requested refresh would schedule one more
        self._again = self.loop.call_later(pause, self.refresh_soon)

    async def know_topics(self, names: Iterable[str]) -> None:
        """Fetches metadata of those of these topics that are unknown, once. Missing topics stay unknown."""
        with self.lock:
            missing = sorted(name for name in names if name not in self.cluster.topics)
        if missing:
            await self.learn(missing)

    async def learn(
        self, names: Iterable[str] | None, ids: Iterable[uuid.UUID] = (), *, may_create: bool = True
    ) -> Any:
        """Fetches metadata now, and applies it to the cluster view."""
        names, ids = None if names is None else frozenset(names), frozenset(ids)
        answer = await self.metadata(names, ids, may_create=may_create)
        with self.lock:
            self.cluster.apply(answer, names=names, ids=ids)
            self._on_metadata()
        return answer

    async def metadata(
        self, names: Iterable[str] | None, ids: Iterable[uuid.UUID] = (), *, may_create: bool = True
    ) -> Any:
        """One Metadata answer for these topics (None: all), from the first broker in turn that answers."""
        by_id = [{"topic_id": each, "name": None} for each in ids]
        fields = {
            "topics": None if names is None else [*({"topic_id": None, "name": name} for name in names), *by_id],
            "allow_auto_topic_creation": may_create and self.config.allow_auto_create_topics,
            "include_topic_authorized_operations": False,
        }
        last: HeadraceError | None = None
        hopeless = True
        for node in self._candidates():
            try:
                connection = await self._connect((node.host, node.port), node.host, node.port, "")
                reply = await self._ask_metadata(connection, fields)
            except ClosedError:
                raise
            except HeadraceError as error:  # even if that is no broker at all: another may be
                if error is self._refusal:
                    raise
                hopeless &= not error.retriable
                last = error
                continue
            code = getattr(reply.body, "error_code", NONE)
            if code == _REBOOTSTRAP_REQUIRED:
                last, hopeless = kafka_error(code, f"Metadata to {connection.host}"), False
                continue
            if code != NONE and not is_retriable(code):
                raise kafka_error(code, f"Metadata to {connection.host}")
            return reply.body
        if last is not None and hopeless:
            raise last
        raise NetworkError(f"no broker could be reached: {last}") from last

    async def _ask_metadata(self, connection: Connection, fields: Mapping[str, Any]) -> Reply:
        """A broker that answers ApiVersions may still reject the next request: if it expects a login, it closes the
        connection."""
        what = (connection.host, "Metadata")
        self._outages.tries(what, self.loop.time())
        try:
            reply = await connection.call(METADATA, fields)
        except HeadraceError as error:
            if not self.closed:
                self._warn(what, error)
            raise
        self._reached(what)
        return reply

    def _candidates(self) -> list[Node]:
        """Known brokers first, in the order of their failures; then the bootstrap servers. Throttled brokers are the
        last."""
        known = list(self.cluster.brokers.values())
        turn = next(self._rotation)
        known = known[turn % len(known) :] + known[: turn % len(known)] if known else []
        known.sort(key=lambda node: self._failures.get((node.host, node.port), 0))
        addresses = {(node.host, node.port) for node in known}
        bootstrap = [Node(-1, *address) for address in self.config.bootstrap_servers if address not in addresses]
        if known and self.config.metadata_recovery_strategy != "rebootstrap":
            bootstrap = []
        return sorted(known + bootstrap, key=self._is_throttled)

    def _is_throttled(self, node: Node) -> bool:
        connection = self._connections.get(((node.host, node.port), ""))
        return connection is not None and connection.is_open and connection.throttled_for > 0

    # -- the end ---------------------------------------------------------------------------------------------

    def _close_idle(self) -> None:
        limit = self.config.connections_max_idle_ms
        if limit < 0:
            return
        for key, connection in list(self._connections.items()):
            if not connection.is_open or (
                not connection.in_flight and self.loop.time() - connection.last_used > limit / 1000
            ):
                connection.close()
                del self._connections[key]

    def disconnect(self) -> None:
        """Closes every connection. No new ones are made."""
        self.closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def close(self) -> None:
        """Closes every connection, and ends the calls that wait for one."""
        self.closed = True
        tasks = [*self._opening.values(), *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.disconnect()
        self._frames.close()
        self._end_waiting(ClosedError("this consumer is closed"))

    def _end_waiting(self, error: HeadraceError) -> None:
        """Fails the calls that wait for a refresh which will not come."""
        if self._refreshed is not None and not self._refreshed.done():
            self._refreshed.set_exception(error)
            self._refreshed.exception()
