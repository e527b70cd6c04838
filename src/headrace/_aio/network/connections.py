"""The connections of one client to its brokers.

- One connection for each broker and purpose, because a broker serves the requests of a connection one at a
  time: a long-polling fetch would block everything behind it.
- A broker that cannot be reached is not tried again before a backoff, which doubles. Other brokers are asked meanwhile.
  After a few seconds a warning names the broker and the reason, and again every minute.
- A login that a broker rejects is not repeated, neither there nor at another broker: after several wrong passwords an
  account is locked, for everybody. The rejection ends this client.

Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..._chance import chance
from ..._machines.api_versions_fallback import ApiVersionsFallback
from ..._machines.backoff import Backoff
from ..._machines.outage_warnings import PATIENCE, OutageWarnings
from ..._net.connection import Connection
from ..._net.frame_pool import FramePool
from ..._net.handshake import ClosedAtApiVersions
from ..._protocol.messages import API_VERSIONS
from ..._security.access import Access
from ...config.client import ClientConfig
from ...errors import AuthenticationError, ClosedError, HeadraceError

log = logging.getLogger(__name__)

Address = tuple[str, int]
NO_ANSWER = "no broker has answered"


class Connections:
    """`on_refusal` is called on the loop when a broker has rejected the login for good."""

    def __init__(self, config: ClientConfig, on_refusal: Callable[[HeadraceError], None]) -> None:
        self.is_closed = False
        self.refusal: AuthenticationError | None = None
        self.frames = FramePool()
        self._config = config
        self._on_refusal = on_refusal
        self._access = Access(config)
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._failures: dict[Address, int] = {}
        self._last_errors: dict[Address, HeadraceError] = {}
        self._not_before: dict[Address, float] = {}
        self._fallbacks: dict[Address, ApiVersionsFallback] = {}
        self._outages = OutageWarnings()
        self._reconnect = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._setup = Backoff(config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def open_connections(self) -> list[Connection]:
        """From any thread: metrics() counts them."""
        return [connection for connection in list(self._connections.values()) if connection.is_open]

    def failures(self, address: Address) -> int:
        """How often in a row this broker could not be reached."""
        return self._failures.get(address, 0)

    def is_throttled(self, address: Address) -> bool:
        connection = self._connections.get((address, ""))
        return connection is not None and connection.is_open and connection.throttled_for > 0

    # -- connecting ------------------------------------------------------------------------------------------

    async def connect(self, host: str, port: int, purpose: str = "") -> Connection:
        """An open connection to this address. Connects if there is none, after the broker's backoff."""
        if self.is_closed:
            raise ClosedError(f"this {self._config.role} is closed")
        key = ((host, port), purpose)
        connection = self._connections.get(key)
        if connection is not None:
            if connection.is_open:
                return connection
            self._look_for_refusal(connection.failure)
        if self.refusal is not None:
            raise self.refusal
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._open(key), name=f"connect {host}:{port}")
            self._opening[key] = opening
            opening.add_done_callback(lambda task: self._opened(key, task))
        # Several callers may wait for it, and the cancellation of one must not affect the others. asyncio.shield() does
        # the same, but from Python 3.14 on it logs errors that nobody waits for any more.
        await asyncio.wait([opening])
        return opening.result()

    def _opened(self, key: tuple[Address, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, even if no caller waits for it any more

    async def _open(self, key: tuple[Address, str]) -> Connection:
        address, purpose = key
        host, port = address
        if (pause := self._not_before.get(address, 0.0) - self._loop.time()) > 0:
            await asyncio.sleep(pause)
        failures = self._failures.get(address, 0)
        fallback = self._fallbacks.setdefault(address, ApiVersionsFallback())
        setup_timeout = self._setup.seconds(failures + 1, chance.random())
        name = f"{host}:{port}"
        self.tries(name)
        reason = f"{name} does not answer: it cannot be reached, or it is not the port of a Kafka broker"
        timer = self._loop.call_later(PATIENCE, self.warn, name, reason)
        try:
            connection = await Connection.open(
                host, port, self._config, setup_timeout, self._access, self.frames, fallback.version
            )
        except HeadraceError as error:
            if isinstance(error, ClosedAtApiVersions):
                fallback.closed()
            self.warn(name, error)
            self._look_for_refusal(error)
            self._failures[address] = failures + 1
            self._last_errors[address] = error
            pause = self._reconnect.seconds(failures + 1, chance.random())
            self._not_before[address] = self._loop.time() + pause
            raise
        finally:
            timer.cancel()
        if self.is_closed:  # meanwhile, by `disconnect`, which knows only the connections that were open
            connection.close()
            raise ClosedError(f"this {self._config.role} is closed")
        fallback.answered(connection.versions.ranges.get(API_VERSIONS.key, (0, 0))[1])
        self.reached(name)
        self._failures.pop(address, None)
        self._last_errors.pop(address, None)
        self._not_before.pop(address, None)
        self._connections[key] = connection
        log.debug("connected to %s:%s%s", host, port, f" for {purpose}" if purpose else "")
        return connection

    def tries(self, what: str | tuple[str, str]) -> None:
        self._outages.tries(what, self._loop.time())

    def warn(self, what: str | tuple[str, str], reason: HeadraceError | str) -> None:
        """About a broker that cannot be used: after a few seconds, then once a minute. Polls keep waiting."""
        seconds = self._outages.to_warn_of(what, self._loop.time())
        if seconds is not None:
            log.warning("%s (for %.0f s now; retrying)", reason, seconds)

    def reached(self, what: str | tuple[str, str]) -> None:
        seconds = self._outages.ends(what, self._loop.time())
        if seconds is not None:
            log.info("%s answers again, after %.0f s", what if isinstance(what, str) else what[0], seconds)

    def _look_for_refusal(self, error: HeadraceError | None) -> None:
        if isinstance(error, AuthenticationError) and error.is_final and self.refusal is None:
            self.refusal = error
            log.error("giving up: %s", error)
            self._on_refusal(error)

    def obstacle(self) -> HeadraceError | None:
        """Why this client cannot reach a broker: preferably one that it is about to retry. From any thread."""
        errors = dict(self._last_errors)
        retried = [errors[address] for address, _ in list(self._opening) if address in errors]
        return next(iter(retried or errors.values()), None)

    def silence(self) -> str:
        """Why there is no response, with the addresses of brokers, for an error message. From any thread."""
        if (obstacle := self.obstacle()) is not None:
            return str(obstacle)
        busy = {connection.host for connection in self.open_connections if connection.in_flight}
        busy.update(f"{host}:{port}" for (host, port), _ in list(self._opening))
        return f"no answer from {', '.join(sorted(busy))}" if busy else NO_ANSWER

    def awaited(self) -> str:
        """The brokers that have not answered yet, for an error message."""
        busy = [connection.host for connection in self._connections.values() if connection.in_flight]
        return ", ".join(sorted({*busy, *(task.get_name() for task in self._opening.values())})) or "its turn"

    # -- the end ---------------------------------------------------------------------------------------------

    def close_idle(self) -> None:
        """Closes the connections that were not used for `connections.max.idle.ms`."""
        limit = self._config.connections_max_idle_ms
        if limit < 0:
            return
        for key, connection in list(self._connections.items()):
            if not connection.is_open or (
                not connection.in_flight and self._loop.time() - connection.last_used > limit / 1000
            ):
                connection.close()
                del self._connections[key]

    def disconnect(self) -> None:
        """Closes every connection. No new ones are made."""
        self.is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def close(self) -> None:
        self.is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        self.disconnect()
        self.frames.close()
