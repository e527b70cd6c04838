"""Fetches: sends what `_machines/fetch/planner.py` plans, and passes the responses on to the decoder.

For each broker there are two streams, each with a connection and a fetch session of its own. The first one requests
everything that is to be fetched. The broker can park its request for `fetch.max.wait.ms` when the partitions in it have
nothing new. A partition that needs a fetch meanwhile (its records were polled, or it was just sought, resumed or
assigned) goes over the second stream at once and does not wait behind the first one's request. While the first one's
response is known to come at once, the second stays idle: fewer, fuller fetches are cheaper. The broker never parks a
request of the second one for long: otherwise both could be parked while a third partition needs a fetch.

The next request is sent before a response is decoded: the batch headers say where it has to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.fetch.planner import FetchedRecords
from ..._machines.fetch.session import FetchSession, SessionRequest
from ..._machines.fetch.standing_fetch import FetchPlan, StandingFetch
from ..._net.calls import Reply
from ..._net.connection import Connection
from ..._protocol.codes import NONE, code_name
from ..._protocol.messages import FETCH
from ...config.consumer import ConsumerConfig
from ...errors import ClosedError, HeadraceError, NetworkError, RequestTimeoutError
from ...records import next_offset
from ..network.client import Client
from .decoder import Decoder, Delivery
from .partitions import FetchedPartitions

log = logging.getLogger(__name__)

_SHORT_WAIT_MS = 20


class Fetcher:
    """All streams of a consumer."""

    def __init__(self, client: Client[ConsumerConfig], partitions: FetchedPartitions) -> None:
        self.client = client
        self.partitions = partitions
        self.decoder = Decoder(client.config, partitions, self.wake_from_any_thread)
        self._loop = asyncio.get_running_loop()
        self._streams: dict[tuple[int, int], _FetchStream] = {}
        self._all_streams: tuple[_FetchStream, ...] = ()  # the same, for other threads: replaced, never changed
        self._woken = False  # a wake is on its way to the loop: set by any thread, cleared by the loop's

    def wake(self) -> None:
        """Something may have become fetchable. On the loop's thread."""
        self._woken = False
        with self.partitions.lock:
            nodes = self.partitions.fetching.nodes(self._loop.time())
        self.connect(nodes)
        for stream in self._streams.values():
            stream.look.set()

    def connect(self, nodes: Iterable[int]) -> None:
        """Makes the streams to these brokers, even before there is something to fetch. On the loop's thread."""
        for node in nodes:
            if (node, 0) not in self._streams:
                first = _FetchStream(self, node, 0, None)
                self._streams[node, 0] = first
                self._streams[node, 1] = first.behind = _FetchStream(self, node, 1, first)
                self._all_streams = tuple(self._streams.values())

    def wake_from_any_thread(self) -> None:
        """Only if a stream is idle. To interrupt the loop otherwise would cost a poll as much as a thousand records: it
        waits until the loop's thread releases the interpreter lock."""
        if not self._woken and any(stream.is_listening for stream in self._all_streams):
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is to be fetched any more
                self._loop.call_soon_threadsafe(self.wake)

    def knows(self, nodes: Iterable[int]) -> bool:
        """Whether all of these brokers have their streams."""
        return all((node, 0) in self._streams for node in nodes)

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        try:
            await asyncio.gather(*(stream.task for stream in self._streams.values()), return_exceptions=True)
        finally:
            self.decoder.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What a response brings: records to decode, and what is left to do on the loop."""

    delivery: Delivery
    is_stale: bool = False
    was_refused: bool = False
    wakes_others: bool = False
    nodes: frozenset[int] = frozenset()


class _FetchStream:
    """One sequence of fetches to one broker, at most one of them in flight."""

    def __init__(self, fetcher: Fetcher, node: int, number: int, ahead: _FetchStream | None) -> None:
        self._fetcher = fetcher
        self._client = fetcher.client
        self._partitions = fetcher.partitions
        self._node = node
        self._purpose = (
            f"fetch {number}" if fetcher.partitions.lane is None else f"{fetcher.partitions.lane} fetch {number}"
        )
        self._ahead = ahead  # the stream that has to be parked before this one is used
        self.behind: _FetchStream | None = None  # the stream that is used while this one is parked
        self._fetch = StandingFetch(node, keeps=ahead is None)
        # Other threads read these two, and the loop's writes them where it plans, with the lock held. So a thread that
        # takes records, with the lock held, is seen by the next plan, or sees that no plan is to come. (The end of a
        # request ends `_parked` without the lock: a plan follows.)
        self._is_asleep = False
        self._parked = False
        self._yields = False  # the stream ahead will take the partitions of the request that is under way
        self._has_freed = False  # a request has ended since the last look of the stream ahead
        self._max_wait_ms = 0  # of the next request
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._failures = 0
        self._arrived: Delivery | None = None  # to be decoded as soon as its successor is on its way
        # What the response to the current request brings. Set with the lock held, when the request ends: by the thread
        # that receives, which then also has it decoded, or by the loop's.
        self._outcome: _Outcome | None = None
        self._crash: Exception | None = None  # on the thread that receives
        self.look = asyncio.Event()
        self.task = self._partitions.watch(asyncio.create_task(self._run(), name=f"{self._purpose} from broker {node}"))

    def close(self) -> None:
        self.task.cancel()
        with self._partitions.lock:
            if self._fetch.under_way is not None:
                self._partitions.fetching.failed(self._fetch.under_way)
        if self._connection is not None and self._connection.is_open and (last := self._session.close_request()):
            with contextlib.suppress(HeadraceError):
                self._connection.start(FETCH, self._fields(last, 0))

    async def _run(self) -> None:
        if self._ahead is None:
            # While positions are still being looked up. If it fails, the first fetch tries again, and reports it.
            with contextlib.suppress(HeadraceError):
                await self._connect()
        while True:
            self.look.clear()
            plan = self._plan()
            if plan is None:
                self._decode_arrived()
                self._hand_on()
                await self._sleep()
                continue
            self._has_freed = True
            self._outcome = None
            try:
                connection = await self._connect()
                fields = self._fields(self._session.request(plan.wants, plan.changed), plan.max_bytes)
                answer = connection.start(FETCH, fields, on_receipt=functools.partial(self._received, plan, connection))
                self._decode_arrived()
                reply = await answer
            except HeadraceError as error:
                self._decode_arrived()
                await self._failed(plan, error)
                continue
            finally:
                self._parked = False
            await self._answered(plan, connection, reply)

    def _decode_arrived(self) -> None:
        if self._arrived is not None:
            arrived, self._arrived = self._arrived, None
            self._fetcher.decoder.submit(arrived)

    def _hand_on(self) -> None:
        """The partitions of this stream's last request are free again. If the first stream's response came while they
        were not, it found nothing to fetch and sleeps: now it can fetch them."""
        if self._ahead is not None and self._has_freed:
            self._has_freed = False
            self._ahead.look.set()

    @property
    def is_listening(self) -> bool:
        """Whether it would send a fetch now if there were one. After a request it looks by itself."""
        return self._is_asleep and (self._ahead is None or self._ahead._parked)

    def _plan(self) -> FetchPlan | None:
        with self._partitions.lock:
            plan = None
            yields, self._yields = self._yields, False
            if self._ahead is None or (self._ahead._parked and not yields):
                plan = self._partitions.fetching.plan(self._fetch, self._fetcher._loop.time())
            self._is_asleep = plan is None
            self._parked = plan is not None and plan.parked
            self._max_wait_ms = self._choose_wait()
        return plan

    def _choose_wait(self) -> int:
        """The second stream's requests are short. If it has only idle partitions, this stream gets them: its next
        request is short, too, and the one after it has them. Otherwise they would be fetched every few milliseconds."""
        wait: int = self._client.config.fetch_max_wait_ms
        behind = self.behind
        if behind is not None:
            if not (self._parked and behind._parked):
                return wait
            behind._yields = True
        return min(wait, _SHORT_WAIT_MS)

    async def _sleep(self) -> None:
        now = self._fetcher._loop.time()
        with self._partitions.lock:
            until = self._partitions.fetching.next_wake(now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.look.wait()

    async def _connect(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_open or connection.throttled_for:
            self._decode_arrived()  # connecting takes a while: do not keep the user waiting for them
        if connection is None or not connection.is_open:
            self._session.broken()
            connection = self._connection = await self._client.connection(self._node, self._purpose)
            connection.receive_on_a_thread()
        if pause := connection.throttled_for:
            await asyncio.sleep(pause)
        return connection

    def _fields(self, request: SessionRequest, max_bytes: int) -> dict[str, Any]:
        config = self._client.config
        topics: dict[Any, list[dict[str, Any]]] = {}
        for tip, want in request.send.items():
            topics.setdefault(tip.topic_id, []).append(
                {
                    "partition": tip.partition,
                    "current_leader_epoch": want.leader_epoch,
                    "fetch_offset": want.offset,
                    "partition_max_bytes": want.max_bytes,
                }
            )
        forgotten: dict[Any, list[int]] = {}
        for tip in request.forget:
            forgotten.setdefault(tip.topic_id, []).append(tip.partition)
        return {
            "replica_id": -1,
            "max_wait": self._max_wait_ms,
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

    def _received(self, plan: FetchPlan, connection: Connection, reply: Reply) -> None:
        """On the thread that receives, before the loop knows of the response: its records may be all that a poll waits
        for. Errors are left to the loop."""
        try:
            if reply.body.error_code == NONE and (outcome := self._apply(plan, connection, reply)) is not None:
                self._fetcher.decoder.submit(outcome.delivery)
        except Exception as error:  # noqa: BLE001 - raised on the loop, where it ends this stream
            self._crash = error

    def _apply(self, plan: FetchPlan, connection: Connection, reply: Reply) -> _Outcome | None:
        """Returns what the response brings, or None if the request has ended before. On any thread."""
        with self._partitions.lock:
            if self._fetch.under_way is not plan:
                return None
            self._parked = False  # a plan follows
            fetching, now = self._partitions.fetching, self._fetcher._loop.time()
            with_records, is_stale, has_moved = fetching.answered(plan, reply.body, now)
            arrivals: list[FetchedRecords] = []
            for asked, data in with_records:
                self._fetcher.bytes_fetched += len(data.records)
                arrivals.append(fetching.arrived(asked, data, next_offset(data.records, asked.offset)))
            self._fetcher.fetches += 1
            was_refused, fetching.was_refused = fetching.was_refused, False
            self._outcome = outcome = _Outcome(
                Delivery(reply, connection, arrivals),
                is_stale=is_stale,
                was_refused=was_refused,
                wakes_others=has_moved or is_stale or (not arrivals and fetching.is_over_budget),
                nodes=fetching.nodes(now),
            )
        return outcome

    async def _answered(self, plan: FetchPlan, connection: Connection, reply: Reply) -> None:
        if self._crash is not None:
            raise self._crash
        body = reply.body
        self._session.answered(body.error_code, body.session_id)
        if body.error_code != NONE:
            log.debug("fetch session with broker %d: %s", self._node, code_name(body.error_code))
            with self._partitions.lock:
                self._partitions.fetching.failed(plan)
            if body.error_code == ErrorCode.fetch_session_topic_id_error:
                self._client.refresh_soon()
            await self._back_off()
            return
        self._failures = 0
        if self._outcome is None and (outcome := self._apply(plan, connection, reply)) is not None:
            self._arrived = outcome.delivery
            if outcome.delivery.is_small:
                # A poll may be waiting for just these, and decoding them takes less time than planning.
                self._decode_arrived()
        self._follow_up()

    def _follow_up(self) -> None:
        """Tells others what the response means for them."""
        if (outcome := self._outcome) is None:
            return
        if outcome.was_refused:
            self._partitions.positions_soon()
        if outcome.is_stale:
            self._client.refresh_soon()
        if outcome.wakes_others or not self._fetcher.knows(outcome.nodes):
            self._fetcher.wake()

    async def _failed(self, plan: FetchPlan, error: HeadraceError) -> None:
        with self._partitions.lock:
            partitions = self._partitions.fetching.failed(plan)
        self._follow_up()  # the response came at the same moment
        self._session.broken()
        if isinstance(error, ClosedError):
            raise asyncio.CancelledError
        if isinstance(error, (NetworkError, RequestTimeoutError)):
            log.info("fetching from broker %d failed: %s", self._node, error)
        else:
            level = logging.DEBUG if self._failures else logging.WARNING  # polls raise it, too
            log.log(level, "fetching from broker %d failed: %s", self._node, error)
            self._partitions.fail(partitions, error)
        self._client.refresh_soon()
        await self._back_off()

    async def _back_off(self) -> None:
        self._failures += 1
        await asyncio.sleep(self._client.retries.pause(self._failures))
