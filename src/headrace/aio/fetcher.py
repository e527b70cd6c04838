"""Fetches: sends what `machines/fetching.py` plans, and has what arrives decoded.

For each broker there are two streams, each with a connection and a fetch session of its own. The first asks for
everything that is wanted. Its request can lie at the broker for `fetch.max.wait.ms` when the partitions in it
have nothing new; a partition that becomes hungry meanwhile (its records were polled, or it was sought, resumed
or assigned just now) goes over the second stream at once and does not wait behind the first one's request.
While the first one's answer is known to come at once, the second stays idle: fewer, fuller fetches are cheaper.

An answer's successor is sent before the answer is decoded: where it has to start can be seen from the batch
headers. Decoding happens on a few threads of its own, small answers excepted; partitions in one answer are
decoded side by side, and `PartitionState.decoded` puts them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..config import ConsumerConfig
from ..errors import ClosedError, CorruptRecordError, HeadraceError, NetworkError, RequestTimeoutError
from ..machines.fetching import Arrival, Plan
from ..machines.session import FetchSession, SessionRequest
from ..net.connection import Connection, Reply
from ..protocol.codes import NONE, code_name
from ..protocol.messages import FETCH
from ..records import DecodeError, decode, next_offset
from .client import Client
from .intake import Intake

log = logging.getLogger(__name__)

_INLINE_BYTES = 16 * 1024
_FETCH_SESSION_TOPIC_ID_ERROR = 106


class Fetcher:
    """All streams of a consumer."""

    def __init__(self, client: Client, intake: Intake) -> None:
        self.client = client
        self.intake = intake
        self.decoder = Decoder(client.config, intake, self.wake_from_any_thread)
        self.fetches = 0
        self.bytes_fetched = 0
        self._loop = asyncio.get_running_loop()
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._woken = False  # a wake is on its way to the loop: set by any thread, cleared by the loop's

    def wake(self) -> None:
        """Something may have become fetchable. On the loop's thread."""
        self._woken = False
        with self.intake.lock:
            nodes = self.intake.fetching.nodes(self._loop.time())
        for node in nodes:
            if (node, 0) not in self._streams:
                first = _Stream(self, node, 0, None)
                self._streams[node, 0] = first
                self._streams[node, 1] = _Stream(self, node, 1, first)
        for stream in self._streams.values():
            stream.look.set()

    def wake_from_any_thread(self) -> None:
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is to be fetched any more
                self._loop.call_soon_threadsafe(self.wake)

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        await asyncio.gather(*(stream.task for stream in self._streams.values()), return_exceptions=True)
        self.decoder.close()


class _Stream:
    """One sequence of fetches to one broker, at most one of them in flight."""

    def __init__(self, fetcher: Fetcher, node: int, number: int, ahead: _Stream | None) -> None:
        self._fetcher = fetcher
        self._client = fetcher.client
        self._intake = fetcher.intake
        self._node = node
        self._purpose = f"fetch {number}"
        self._ahead = ahead  # the stream that has to be parked before this one is used
        self._parked = False
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._failures = 0
        self.look = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"fetch {number} from broker {node}")

    def close(self) -> None:
        self.task.cancel()
        if self._connection is not None and self._connection.is_open and (last := self._session.farewell()):
            with contextlib.suppress(HeadraceError):
                self._connection.start(FETCH, self._fields(last, 0))

    async def _run(self) -> None:
        decode_next: tuple[Reply, Connection, list[Arrival]] | None = None
        while True:
            self.look.clear()
            plan = self._plan()
            if plan is None:
                if decode_next is not None:
                    self._fetcher.decoder.submit(*decode_next)
                    decode_next = None
                await self._sleep()
                continue
            self._parked = plan.parked
            try:
                connection = await self._connect()
                answer = connection.start(FETCH, self._fields(self._session.request(plan.wants), plan.max_bytes))
                if decode_next is not None:
                    self._fetcher.decoder.submit(*decode_next)
                    decode_next = None
                reply = await answer
            except asyncio.CancelledError:
                raise
            except HeadraceError as error:
                if decode_next is not None:
                    self._fetcher.decoder.submit(*decode_next)
                    decode_next = None
                await self._failed(plan, error)
                continue
            finally:
                self._parked = False
            arrivals = await self._answered(plan, reply)
            decode_next = (reply, connection, arrivals)

    def _plan(self) -> Plan | None:
        if self._ahead is not None and not self._ahead._parked:
            return None
        with self._intake.lock:
            return self._intake.fetching.plan(self._node, self._fetcher._loop.time())

    async def _sleep(self) -> None:
        now = self._fetcher._loop.time()
        with self._intake.lock:
            until = self._intake.fetching.next_wake(now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.look.wait()

    async def _connect(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_open:
            self._session.broken()
            connection = self._connection = await self._client.connection(self._node, self._purpose)
        if pause := connection.throttled_for:
            await asyncio.sleep(pause)
        return connection

    def _fields(self, request: SessionRequest, max_bytes: int) -> dict[str, Any]:
        config = self._client.config
        topics: dict[Any, list[dict[str, Any]]] = {}
        for slot, want in request.send.items():
            topics.setdefault(slot.topic_id, []).append(
                {
                    "partition": slot.partition,
                    "current_leader_epoch": want.leader_epoch,
                    "fetch_offset": want.offset,
                    "partition_max_bytes": want.max_bytes,
                }
            )
        forgotten: dict[Any, list[int]] = {}
        for slot in request.forget:
            forgotten.setdefault(slot.topic_id, []).append(slot.partition)
        return {
            "replica_id": -1,
            "max_wait": config.fetch_max_wait_ms,
            "min_bytes": config.fetch_min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": 1 if config.isolation_level == "read_committed" else 0,
            "session_id": request.session_id,
            "session_epoch": request.epoch,
            "topics": [{"topic_id": topic, "partitions": items} for topic, items in topics.items()],
            "forgotten_topics_data": [
                {"topic_id": topic, "partitions": numbers} for topic, numbers in forgotten.items()
            ],
            "rack_id": config.client_rack,
        }

    async def _answered(self, plan: Plan, reply: Reply) -> list[Arrival]:
        body = reply.body
        self._session.answered(body.error_code, body.session_id)
        if body.error_code != NONE:
            log.debug("fetch session with broker %d: %s", self._node, code_name(body.error_code))
            with self._intake.lock:
                self._intake.fetching.failed(plan)
            if body.error_code == _FETCH_SESSION_TOPIC_ID_ERROR:
                self._client.refresh_soon()
            await self._back_off()
            return []
        self._failures = 0
        self._fetcher.fetches += 1
        arrivals: list[Arrival] = []
        with self._intake.lock:
            fetching = self._intake.fetching
            with_records, stale = fetching.answered(self._node, plan, body, self._fetcher._loop.time())
            for asked, data in with_records:
                self._fetcher.bytes_fetched += len(data.records)
                arrivals.append(fetching.arrived(asked, data, next_offset(data.records, asked.offset)))
            moved = bool(self._intake.fetching.nodes(self._fetcher._loop.time()) - {self._node})
            refused, fetching.was_refused = fetching.was_refused, False
        if refused:
            self._intake.positions_soon()
        if stale:
            self._client.refresh_soon()
        if moved and (stale or not arrivals):
            self._fetcher.wake()
        return arrivals

    async def _failed(self, plan: Plan, error: HeadraceError) -> None:
        with self._intake.lock:
            self._intake.fetching.failed(plan)
        self._session.broken()
        if isinstance(error, ClosedError):
            raise asyncio.CancelledError
        if isinstance(error, (NetworkError, RequestTimeoutError)):
            log.info("fetching from broker %d failed: %s", self._node, error)
        else:
            log.warning("fetching from broker %d failed: %s", self._node, error)
            self._intake.fail([asked.tp for asked in plan.asked.values()], error)
        self._client.refresh_soon()
        await self._back_off()

    async def _back_off(self) -> None:
        self._failures += 1
        await asyncio.sleep(self._client.retry_pause(self._failures))


class Decoder:
    """Turns arrived bytes into records, off the event loop.

    `submit` is called on the loop's thread. `_decode` runs on any thread: it takes the intake's lock only to
    hand over the result. The frame that the bytes lie in goes back to its connection with the last of them.
    """

    def __init__(self, config: ConsumerConfig, intake: Intake, wake: Any) -> None:
        self._intake = intake
        self._wake = wake
        self._read_committed = config.isolation_level == "read_committed"
        self._check_crcs = config.check_crcs
        self._max_batch = config.decompressed_batch_max_bytes
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "headrace-decode")

    def submit(self, reply: Reply, connection: Connection, arrivals: list[Arrival]) -> None:
        left = _Countdown(len(arrivals), reply, connection)
        if sum(len(arrival.records) for arrival in arrivals) <= _INLINE_BYTES:
            for arrival in arrivals:
                self._decode(arrival, left)
        else:
            for arrival in arrivals:
                self._threads.submit(self._decode, arrival, left)

    def _decode(self, arrival: Arrival, left: _Countdown) -> None:
        tp = arrival.tp
        batch, fault = None, None
        try:
            batch = decode(
                arrival.records,
                topic=tp.topic,
                partition=tp.partition,
                position=arrival.offset,
                aborted=arrival.aborted,
                read_committed=self._read_committed,
                check_crcs=self._check_crcs,
                max_batch_bytes=self._max_batch,
            )
        except DecodeError as error:
            fault = CorruptRecordError(str(error), tp, error.offset)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the user and not to this thread
            fault = CorruptRecordError(f"{tp} at offset {arrival.offset}: {error!r}", tp, arrival.offset)
        with self._intake.lock:
            state = self._intake.assignment.get(tp)
            if state is not None and state.continuity == arrival.continuity:
                if batch is not None:
                    state.decoded(arrival.offset, len(arrival.records), batch, arrival.next_offset)
                elif fault is not None:
                    state.damaged(arrival.offset, fault)
            if batch is not None:
                self._intake.fetching.measured(len(arrival.records), batch.nbytes)
            wake = self._intake.fetching.is_starved or fault is not None
        left.one_done()
        self._intake.doorbell.ring()
        if wake:
            self._wake()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Countdown:
    """Gives a frame back when the last partition in it is decoded."""

    def __init__(self, count: int, reply: Reply, connection: Connection) -> None:
        self._left = count
        self._reply = reply
        self._connection = connection
        self._lock = threading.Lock()
        if count == 0:
            self._give_back()

    def one_done(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._give_back()

    def _give_back(self) -> None:
        if self._reply.frame is not None:
            self._connection.recycle(self._reply.frame)
