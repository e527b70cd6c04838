"""One stream for each broker: a connection of its own, on which the requests of a share session follow each other.

A session belongs to its connection, and so do the locks on records: when a connection is lost, the planner hears of
it, and nothing that was held on it can be acknowledged any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from ..errors import ClosedError, HeadraceError, NetworkError, RequestTimeoutError, UnsupportedVersionError
from ..machines.share_answers import Answer, answered, arrived, damaged
from ..machines.share_member import NEEDS
from ..machines.share_place import ShareRequest, ShareTerms
from ..net.connection import Connection
from ..protocol.codes import NONE, code_name
from ..protocol.messages import SHARE_FETCH
from .client import Client
from .share_decoding import Decoded, decode_arrival
from .share_intake import ShareIntake

log = logging.getLogger(__name__)

_LARGE = 1024 * 1024  # bytes of records that are decoded on another thread
_WITH_RENEWAL = 2  # the version of ShareFetch and ShareAcknowledge that has renewals and the record limit


def share_version(connection: Connection, terms: ShareTerms) -> int:
    """The version of ShareFetch that the broker speaks. Raises UnsupportedVersionError if it will not do."""
    try:
        version = connection.versions.pick(SHARE_FETCH)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{error} ({NEEDS})") from None
    wants = "share.acquire.mode=record_limit" if terms.is_strict else "renew=auto" if terms.must_renew else None
    if version < _WITH_RENEWAL and wants:
        raise UnsupportedVersionError(
            f"{wants} needs ShareFetch version 2 (Apache Kafka 4.2 or newer); the broker at {connection.host} has "
            f"version {version}"
        )
    return version


class Streams:
    """Belongs to the loop on which it was made, except `wake_from_any_thread`."""

    def __init__(self, client: Client, intake: ShareIntake) -> None:
        self.client = client
        self.intake = intake
        self.loop = asyncio.get_running_loop()
        self.progress = asyncio.Event()  # an answer came
        self.fetches = 0
        self.acknowledgements = 0
        self.bytes_fetched = 0
        self.decoder = ThreadPoolExecutor(1, "headrace-decode")
        self._streams: dict[int, _Stream] = {}
        self._woken = False
        self._is_closing = False

    def wake(self) -> None:
        self._woken = False
        with self.intake.lock:
            nodes = () if self._is_closing else tuple(self.intake.planner.places)
        for node in nodes:
            if node not in self._streams:
                self._streams[node] = _Stream(self, node)
        for stream in self._streams.values():
            stream.look.set()

    def wake_from_any_thread(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self.wake)
            except RuntimeError:
                pass  # the loop is closed: nothing is to be fetched any more
            except BaseException:  # a signal handler raised: nobody may be woken, so the next call has to try again
                self._woken = False
                raise

    async def close(self, timeout: float) -> None:
        """Acknowledges what is to be, and closes the sessions: what is held besides is released."""
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


class _Stream:
    def __init__(self, streams: Streams, node: int) -> None:
        self._streams = streams
        self._client = streams.client
        self._intake = streams.intake
        self._node = node
        self._connection: Connection | None = None
        self._ends = False
        self.look = asyncio.Event()
        self.task = self._intake.watch(asyncio.create_task(self._run(), name=f"share session with broker {node}"))

    def end(self) -> None:
        self._ends = True
        self.look.set()

    async def _run(self) -> None:
        while not self._ends:
            self.look.clear()
            connection = await self._connected()
            if connection is None:
                await self._sleep()
                continue
            now = time.monotonic()
            with self._intake.lock:
                request = self._intake.planner.plan(self._node, now)
            if request is None:
                await self._sleep()
            else:
                await self._carry_out(connection, request)
        await self._say_farewell()

    async def _sleep(self) -> None:
        now = time.monotonic()
        with self._intake.lock:
            seconds = self._intake.planner.next_wake(self._node, now) - now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds if seconds < 3600 else None):
                await self.look.wait()

    # -- the connection --------------------------------------------------------------------------------------------

    async def _connected(self) -> Connection | None:
        """The open connection, made if there are partitions to be read from this broker."""
        connection = self._connection
        if connection is not None and connection.is_open:
            if pause := connection.throttled_for:
                await asyncio.sleep(pause)
            return connection if connection.is_open else None
        planner = self._intake.planner
        if connection is not None:
            self._lost(NetworkError(f"the connection to {connection.host} was lost, and with it the locks on records"))
        now = time.monotonic()
        with self._intake.lock:
            if not planner.is_wanted(self._node) or now < planner.places[self._node].not_before:
                return None
        try:
            connection = await self._client.connection(self._node, "share")
            self._check(connection)
        except ClosedError:
            raise asyncio.CancelledError from None
        except HeadraceError as error:
            log.info("share session with broker %d: %s", self._node, error)
            with self._intake.lock:
                planner.pause(planner.places[self._node], time.monotonic())
                if not error.retriable:
                    planner.fault = error
            self._client.refresh_soon()
            self._intake.doorbell.ring()
            return None
        self._connection = connection
        return connection

    def _check(self, connection: Connection) -> None:
        planner = self._intake.planner
        version = share_version(connection, planner.terms)
        with self._intake.lock:
            planner.connected(self._node, can_renew=version >= _WITH_RENEWAL)

    def _lost(self, error: HeadraceError) -> None:
        self._connection = None
        with self._intake.lock:
            self._intake.planner.lost(self._node, error)
        self._streams.progress.set()
        self._intake.doorbell.ring()
        self._client.refresh_soon()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _carry_out(self, connection: Connection, request: ShareRequest) -> None:
        try:
            reply = await connection.start(request.api, request.fields)
        except HeadraceError as error:
            connection.close()  # the session is in a state that nobody knows
            if not isinstance(error, (NetworkError, RequestTimeoutError)):
                log.warning("share session with broker %d: %s", self._node, error)
                with self._intake.lock:
                    self._intake.planner.fault = error
            self._lost(error)
            with self._intake.lock:
                self._intake.planner.pause(self._intake.planner.places[self._node], time.monotonic())
            return
        if request.api is SHARE_FETCH:
            self._streams.fetches += 1
        else:
            self._streams.acknowledgements += 1
        if reply.body.error_code != NONE:
            log.info("%s to broker %d: %s", request.api, self._node, code_name(reply.body.error_code))
        with self._intake.lock:
            answer = answered(self._intake.planner, request, reply.body, time.monotonic())
            is_strict = self._intake.planner.terms.is_strict
        if answer.arrivals:
            await self._take_in(answer)
            self._intake.doorbell.ring()
        elif self._intake.planner.fault is not None or self._intake.planner.outcomes:
            self._intake.doorbell.ring()
        if reply.frame is not None:
            connection.recycle(reply.frame)
        if answer.is_stale:
            self._client.refresh_soon()
        if is_strict or answer.is_stale:
            self._streams.wake()
        self._streams.progress.set()

    async def _take_in(self, answer: Answer) -> None:
        size = sum(len(each.records) for each in answer.arrivals if each.records is not None)
        self._streams.bytes_fetched += size
        if size > _LARGE:
            found = await self._streams.loop.run_in_executor(self._streams.decoder, self._decode, answer)
        else:
            found = self._decode(answer)
        now = time.monotonic()
        with self._intake.lock:
            for arrival, decoded in zip(answer.arrivals, found, strict=True):
                arrived(self._intake.planner, arrival, decoded.batches, decoded.gaps, now)
                if decoded.error is not None:
                    damaged(self._intake.planner, arrival, decoded.damaged, decoded.error, now)

    def _decode(self, answer: Answer) -> list[Decoded]:
        return [decode_arrival(arrival, self._client.config) for arrival in answer.arrivals]

    async def _say_farewell(self) -> None:
        planner = self._intake.planner
        while (connection := self._connection) is not None and connection.is_open:
            now = time.monotonic()
            with self._intake.lock:
                place = planner.places[self._node]
                pause = place.not_before - now if place.has_acks else 0.0
                request = None if pause > 0 else planner.parting(self._node, now)
            if pause > 0:
                await asyncio.sleep(pause)
            elif request is None:
                return
            else:
                await self._carry_out(connection, request)
                if request.is_last:
                    return
