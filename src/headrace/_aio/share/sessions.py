"""One stream for each broker: a connection of its own, with the requests of a share session one after another.

A share session belongs to its connection, and so do acquisition locks: when the connection is lost, the planner loses
the session, and the records that were acquired on it can no longer be acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from ..._machines.share.broker_session import ShareRequest, ShareSettings
from ..._machines.share.member import NEEDS
from ..._machines.share.responses import ShareResponse, buffer_records, handle_response, reject_damaged
from ..._net.connection import Connection
from ..._protocol.codes import NONE, code_name
from ..._protocol.messages import SHARE_FETCH
from ...config.consumer import ConsumerConfig
from ...errors import ClosedError, HeadraceError, NetworkError, RequestTimeoutError, UnsupportedVersionError
from ..network.client import Client
from .buffer import ShareFetchBuffer
from .decode import Decoded, decode_arrival

log = logging.getLogger(__name__)

_LARGE = 1024 * 1024  # bytes of records from which decoding gets a thread
_WITH_RENEWAL = 2  # the first version of ShareFetch and ShareAcknowledge with renewals and the record limit


def share_version(connection: Connection, settings: ShareSettings) -> int:
    """The broker's version of ShareFetch. Raises UnsupportedVersionError if the settings need a newer one."""
    try:
        version = connection.versions.pick(SHARE_FETCH)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{error} ({NEEDS})") from None
    wants = "share.acquire.mode=record_limit" if settings.is_strict else "renew=auto" if settings.must_renew else None
    if version < _WITH_RENEWAL and wants:
        raise UnsupportedVersionError(
            f"{wants} needs ShareFetch version 2 (Apache Kafka 4.2 or newer); the broker at {connection.host} has "
            f"version {version}"
        )
    return version


class ShareSessions:
    """Belongs to the loop on which it was made, except for `wake_from_any_thread`."""

    def __init__(self, client: Client[ConsumerConfig], buffer: ShareFetchBuffer) -> None:
        self.client = client
        self.buffer = buffer
        self.loop = asyncio.get_running_loop()
        self.progress = asyncio.Event()  # an answer arrived, or a session was lost
        self.decoder = ThreadPoolExecutor(1, "headrace-decode")
        self._streams: dict[int, _SessionStream] = {}
        self._woken = False
        self._is_closing = False

    def wake(self) -> None:
        self._woken = False
        with self.buffer.lock:
            nodes = () if self._is_closing else tuple(self.buffer.planner.sessions)
        for node in nodes:
            if node not in self._streams:
                self._streams[node] = _SessionStream(self, node)
        for stream in self._streams.values():
            stream.woken.set()

    def wake_from_any_thread(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self.wake)
            except RuntimeError:
                pass  # the loop is closed: nothing will be fetched any more
            except BaseException:  # a signal handler raised, perhaps before the wake: the next call has to try again
                self._woken = False
                raise

    async def close(self, timeout: float) -> None:
        """Sends the pending acknowledgements and closes the sessions, which releases all other records."""
        self._is_closing = True
        if self._streams:
            for stream in self._streams.values():
                stream.end()
            tasks = [stream.task for stream in self._streams.values()]
            try:
                await asyncio.wait(tasks, timeout=timeout)
            finally:
                for task in tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.decoder.shutdown(wait=False, cancel_futures=True)


class _SessionStream:
    def __init__(self, sessions: ShareSessions, node: int) -> None:
        self._sessions = sessions
        self._client = sessions.client
        self._buffer = sessions.buffer
        self._node = node
        self._connection: Connection | None = None
        self._is_ending = False
        self.woken = asyncio.Event()
        self.task = self._buffer.watch(asyncio.create_task(self._run(), name=f"share session with broker {node}"))

    def end(self) -> None:
        self._is_ending = True
        self.woken.set()

    async def _run(self) -> None:
        while not self._is_ending:
            self.woken.clear()
            connection = await self._connected()
            if connection is None:
                await self._sleep()
                continue
            now = time.monotonic()
            with self._buffer.lock:
                request = self._buffer.planner.plan(self._node, now)
            if request is None:
                await self._sleep()
            else:
                await self._carry_out(connection, request)
        await self._close_session()

    async def _sleep(self) -> None:
        now = time.monotonic()
        with self._buffer.lock:
            seconds = self._buffer.planner.next_wake(self._node, now) - now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if seconds < 3600 else None):
                await self.woken.wait()

    # -- the connection --------------------------------------------------------------------------------------------

    async def _connected(self) -> Connection | None:
        """The open connection. Connects if this broker leads assigned partitions."""
        connection = self._connection
        if connection is not None and connection.is_open:
            if pause := connection.throttled_for:
                await asyncio.sleep(pause)
            return connection if connection.is_open else None
        planner = self._buffer.planner
        if connection is not None:
            self._lost(NetworkError(f"the connection to {connection.host} was lost, and with it the acquisition locks"))
        now = time.monotonic()
        with self._buffer.lock:
            if not planner.is_wanted(self._node) or now < planner.sessions[self._node].not_before:
                return None
        try:
            connection = await self._client.connection(self._node, "share")
            self._check(connection)
        except ClosedError:
            raise asyncio.CancelledError from None
        except HeadraceError as error:
            log.info("share session with broker %d: %s", self._node, error)
            with self._buffer.lock:
                planner.pause(planner.sessions[self._node], time.monotonic())
                if not error.retriable:
                    planner.fault = error
            self._client.refresh_soon()
            self._buffer.poll_signal.notify()
            return None
        self._connection = connection
        return connection

    def _check(self, connection: Connection) -> None:
        planner = self._buffer.planner
        version = share_version(connection, planner.settings)
        with self._buffer.lock:
            planner.connected(self._node, can_renew=version >= _WITH_RENEWAL)

    def _lost(self, error: HeadraceError) -> None:
        self._connection = None
        with self._buffer.lock:
            self._buffer.planner.lose_session(self._node, error)
        self._sessions.progress.set()
        self._buffer.poll_signal.notify()
        self._client.refresh_soon()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _carry_out(self, connection: Connection, request: ShareRequest) -> None:
        try:
            reply = await connection.start(request.api, request.fields)
        except HeadraceError as error:
            connection.close()  # the state of the session is unknown
            if not isinstance(error, (NetworkError, RequestTimeoutError)):
                log.warning("share session with broker %d: %s", self._node, error)
                with self._buffer.lock:
                    self._buffer.planner.fault = error
            self._lost(error)
            with self._buffer.lock:
                self._buffer.planner.pause(self._buffer.planner.sessions[self._node], time.monotonic())
            return
        if request.api is SHARE_FETCH:
            self._buffer.fetches += 1
        else:
            self._buffer.acknowledge_requests += 1
        if reply.body.error_code != NONE:
            log.info("%s to broker %d: %s", request.api, self._node, code_name(reply.body.error_code))
        with self._buffer.lock:
            answer = handle_response(self._buffer.planner, request, reply.body, time.monotonic())
            is_strict = self._buffer.planner.settings.is_strict
        if answer.arrivals:
            await self._buffer_records(answer)
            self._buffer.poll_signal.notify()
        elif self._buffer.planner.fault is not None or self._buffer.planner.outcomes:
            self._buffer.poll_signal.notify()
        if reply.frame is not None:
            connection.recycle(reply.frame)
        if answer.is_stale:
            self._client.refresh_soon()
        if is_strict or answer.is_stale:
            self._sessions.wake()
        self._sessions.progress.set()

    async def _buffer_records(self, answer: ShareResponse) -> None:
        size = sum(len(each.records) for each in answer.arrivals if each.records is not None)
        self._buffer.bytes_fetched += size
        if size > _LARGE or self._client.config.has_formats:  # formats may ask a schema registry
            found = await self._sessions.loop.run_in_executor(self._sessions.decoder, self._decode, answer)
        else:
            found = self._decode(answer)
        now = time.monotonic()
        with self._buffer.lock:
            for arrival, decoded in zip(answer.arrivals, found, strict=True):
                buffer_records(self._buffer.planner, arrival, decoded.batches, decoded.gaps, now)
                if decoded.error is not None:
                    reject_damaged(self._buffer.planner, arrival, decoded.damaged, decoded.error, now)

    def _decode(self, answer: ShareResponse) -> list[Decoded]:
        return [decode_arrival(arrival, self._client.config) for arrival in answer.arrivals]

    async def _close_session(self) -> None:
        planner = self._buffer.planner
        while (connection := self._connection) is not None and connection.is_open:
            now = time.monotonic()
            with self._buffer.lock:
                session = planner.sessions[self._node]
                pause = session.not_before - now if session.has_acks else 0.0
                request = None if pause > 0 else planner.closing_request(self._node, now)
            if pause > 0:
                await asyncio.sleep(pause)
            elif request is None:
                return
            else:
                await self._carry_out(connection, request)
                if request.is_last:
                    return
