"""Fetches: sends what `_machines/fetch/planner.py` plans, and passes the responses on to the decoder.

For each broker there are two streams, each with a connection and a fetch session of its own. The first one requests
everything that is to be fetched. The broker can park its request for `fetch.max.wait.ms` when the partitions in it have
nothing new. A partition that needs a fetch meanwhile (its records were polled, or it was just sought, resumed or
assigned) goes over the second stream at once and does not wait behind the first one's request. While the first one's
response is known to come at once, the second stays idle: fewer, fuller fetches are cheaper. The broker never parks a
request of the second one for long: otherwise both could be parked while a third partition needs a fetch.

The next request is sent before a response is decoded: the batch headers say where it has to start.

Small responses are handled by the thread that receives them (`_net/receiver.py`): it applies the response, decodes the
records, wakes the poll and sends the next request. The loop only gets work that this thread must not do: errors, what
other streams have to know, large requests, and when there is nothing to fetch. While a stream waits for new records,
even its decisions are made beforehand (`repetition.py`): the next request is sent before Python knows of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.fetch.planner import FetchedRecords
from ..._machines.fetch.session import FetchSession, SessionRequest
from ..._machines.fetch.standing_fetch import FetchPlan, StandingFetch
from ..._net._kernel import DirectResponse
from ..._net.calls import NextRequest, Reply
from ..._net.connection import Connection
from ..._protocol.codes import NONE, code_name
from ..._protocol.messages import FETCH
from ...config.consumer import ConsumerConfig
from ...errors import ClosedError, HeadraceError, NetworkError, RequestTimeoutError
from ...records import next_offset
from ..network.client import Client
from .decoder import Decoder, Delivery
from .exchange import FetchExchange, FetchOutcome
from .partitions import FetchedPartitions
from .poll_receiving import PolledConnection
from .repetition import RepeatedFetch

log = logging.getLogger(__name__)

_SHORT_WAIT_MS = 20
_HANDOVER = 50e-6  # seconds in which a thread that was notified wakes up
_FEW = 100  # changed partitions of a request: any socket takes it at once


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
        # Other threads read these two, and the one that plans writes them, with the lock held. So a thread that takes
        # records, with the lock held, is seen by the next plan, or sees that no plan is to come. (The end of a request
        # ends `_parked`: a plan follows.)
        self._is_asleep = False
        self._parked = False
        self._yields = False  # until it has slept: the stream ahead takes the partitions of the request under way
        self._has_freed = False  # a request has ended since the last look of the stream ahead
        self._max_wait_ms = 0  # of the next request
        self._room: int | None = None  # for its records, if it may be repeated natively
        self._session = FetchSession()
        self._repetition = RepeatedFetch(self._client.config, self._partitions.lane)
        self._connection: Connection | None = None
        self._failures = 0
        self._arrived: Delivery | None = None  # to be decoded as soon as its successor is on its way
        # The last response. Like the session, it belongs to whoever ends a request with the lock held: the thread that
        # receives, which then has the response decoded and plans the next request, or the loop's.
        self._outcome: FetchOutcome | None = None
        self._unsent: FetchPlan | None = None  # planned by the thread that receives, and left to the loop
        self._crash: BaseException | None = None  # on the thread that receives
        self.is_polled = False  # while a poll notes a response: errors, and Ctrl-C, are the poll's
        self._is_closed = False
        self.look = asyncio.Event()
        self.task = self._partitions.watch(asyncio.create_task(self._run(), name=f"{self._purpose} from broker {node}"))

    def close(self) -> None:
        self.task.cancel()
        self._disconnected()
        with self._partitions.lock:
            self._is_closed = True
            self._partitions.fetching.release(self._fetch)
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
            plan, self._unsent = self._unsent or self._plan(), None
            if plan is None:
                self._decode_arrived()
                self._hand_on()
                await self._sleep()
                continue
            self._has_freed = True
            self._outcome = None
            try:
                connection = await self._connect()
                request = self._request(plan, connection)
                answer = connection.start(
                    FETCH, request.fields, on_receipt=request.on_receipt, repetition=request.repetition
                )
                self._decode_arrived()
                reply = await answer  # to this request, or to one that followed it
            except HeadraceError as error:
                self._decode_arrived()
                await self._failed(error)
                continue
            finally:
                if self._unsent is None:
                    self._parked = False
            await self._answered(connection, reply)

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
        has_lost_all = False
        with self._partitions.lock:
            plan = None
            is_used = self._ahead is None or (self._ahead._parked and not self._yields)
            if is_used and not self._is_closed:
                had_partitions = bool(self._fetch.wants)
                plan = self._partitions.fetching.plan(self._fetch, self._fetcher._loop.time())
                has_lost_all = had_partitions and plan is None
            self._is_asleep = plan is None
            self._parked = plan is not None and plan.parked
            self._max_wait_ms = self._choose_wait()
            self._room = self._partitions.fetching.room_for_repetition if self._may_repeat else None
        if has_lost_all:  # they may belong to another broker now, whose stream sleeps
            self._fetcher.wake_from_any_thread()
        return plan

    @property
    def _may_repeat(self) -> bool:
        """Whether the request can be repeated without a plan. Not while the stream behind this one has partitions: a
        plan takes them over. Not without budget: a partition that waits for some would wait for one more response."""
        return (
            self._parked
            and self.behind is not None
            and self.behind._is_asleep
            and not self._partitions.fetching.is_over_budget
            and self._partitions.fetching.has_room
            and not self._fetcher.decoder.may_block
        )

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
        self._yields = False

    async def _connect(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_open or connection.throttled_for:
            self._decode_arrived()  # connecting takes a while: do not keep the user waiting for them
        if connection is None or not connection.is_open:
            self._session.broken()
            self._disconnected()
            connection = self._connection = await self._client.connection(self._node, self._purpose)
            connection.receive_on_a_thread()
            self._connected(connection)
        if pause := connection.throttled_for:
            await asyncio.sleep(pause)
        return connection

    def _connected(self, connection: Connection) -> None:
        polls, receiver = self._partitions.poll_receiving, connection.receiver
        if polls is not None and receiver is not None and self._ahead is None:  # other streams are not repeated
            polls.connected(receiver.frames, PolledConnection(self, connection, self._fetcher._loop))

    def _disconnected(self) -> None:
        polls, connection = self._partitions.poll_receiving, self._connection
        if polls is not None and connection is not None and connection.receiver is not None:
            polls.disconnected(connection.receiver.frames)

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
            "isolation_level": 1 if config.reads_committed else 0,
            "session_id": request.session_id,
            "session_epoch": request.epoch,
            "topics": [{"topic_id": topic, "partitions": items} for topic, items in topics.items()],
            "forgotten_topics_data": [
                {"topic_id": topic, "partitions": numbers} for topic, numbers in forgotten.items()
            ],
            "rack_id": config.client_rack,
        }

    def received(self, exchange: FetchExchange, reply: Reply) -> Callable[[], NextRequest | None] | None:
        """On the thread that receives, before the loop knows of the response: its records may be all that a poll waits
        for. Errors, and all that concerns others, are left to the loop."""
        try:
            if self._crash is not None or reply.body.error_code != NONE:
                return None
            connection = exchange.connection
            if (outcome := self._apply(exchange.plan, connection, reply)) is None:
                return None
            is_awaited = self._partitions.poll_signal.is_awaited
            self._fetcher.decoder.submit(outcome.delivery)
            if is_awaited and outcome.delivery.arrivals:
                time.sleep(_HANDOVER)  # the poll gets the interpreter lock, and returns
            is_usual = not (outcome.concerns_others or reply.body.throttle_time) and self._fetcher.knows(outcome.nodes)
            return functools.partial(self._follow, connection) if is_usual else None
        except BaseException as error:  # noqa: BLE001 - raised on the loop, where it ends this stream
            self._crash = error
            return None

    def _follow(self, connection: Connection) -> NextRequest | None:
        """The request that the thread that receives sends itself: the broker has it before the user's thread, or the
        loop, has done anything."""
        try:
            plan = self._plan()
            if plan is None:
                return None
            if len(plan.changed if self._session.is_incremental else plan.wants) > _FEW:
                self._unsent = plan
                return None
            self._has_freed = True
            return self._request(plan, connection)
        except BaseException as error:  # noqa: BLE001 - as above
            self._crash = error
            return None

    def _request(self, plan: FetchPlan, connection: Connection) -> NextRequest:
        request = self._session.request(plan.wants, plan.changed)
        if self._ahead is None:  # others are not repeated
            self._repetition.planned(plan)
        exchange = FetchExchange(self, plan, connection, self._repetition.fetch)
        repetition = None
        if self._room is not None and request.epoch > 0:
            version = connection.versions.pick(FETCH, None)
            self._repetition.prepare(plan, request, version=version, max_wait_ms=self._max_wait_ms, room=self._room)
            repetition = exchange
        return NextRequest(self._fields(request, plan.max_bytes), exchange, repetition)

    def repeated(self, exchange: FetchExchange, response: DirectResponse) -> bool:
        """On the thread that has received. A usual response has come, and the next request was sent."""
        try:
            partitions = self._fetcher.decoder.adopt(response.partitions)
            now = self._fetcher._loop.time()
            with self._partitions.lock:
                repeated = self._partitions.fetching.repeated(exchange.plan, partitions, now)
                if repeated is None:
                    return False
                exchange.plan = repeated.plan
                self._session.repeated(repeated.sent)
                self._failures = 0
                self._partitions.fetches += 1
                self._partitions.bytes_fetched += repeated.size
                may_continue = repeated.may_continue and self._may_repeat
            if partitions:
                self._partitions.poll_signal.notify()
            return may_continue
        except BaseException as error:
            if self.is_polled:
                raise
            self._crash = error  # raised on the loop, where it ends this stream
            return False

    def start_again(self) -> None:
        """A part of the last response was noted, and nobody knows which. On any thread."""
        with self._partitions.lock:
            for asked in list(self._fetch.asked.values()):
                state = self._partitions.assignment.get(asked.tp)
                if state is not None:
                    state.refetch()

    def _apply(self, plan: FetchPlan, connection: Connection, reply: Reply) -> FetchOutcome | None:
        """Returns what the response brings, or None if the request has ended before. On any thread."""
        with self._partitions.lock:
            if self._fetch.under_way is not plan:
                return None
            self._parked = False  # a plan follows
            fetching, now = self._partitions.fetching, self._fetcher._loop.time()
            with_records, is_stale, has_moved = fetching.answered(plan, reply.body, now)
            arrivals: list[FetchedRecords] = []
            for asked, data in with_records:
                self._partitions.bytes_fetched += len(data.records)
                arrivals.append(fetching.arrived(asked, data, next_offset(data.records, asked.offset)))
            self._partitions.fetches += 1
            self._failures = 0
            self._session.answered(NONE, reply.body.session_id)
            was_refused, fetching.was_refused = fetching.was_refused, False
            self._outcome = outcome = FetchOutcome(
                Delivery(reply, connection, arrivals),
                is_stale=is_stale,
                was_refused=was_refused,
                # A refused partition has a backoff, which the sleep of the other stream does not know yet.
                wakes_others=has_moved or is_stale or was_refused or (not arrivals and fetching.is_over_budget),
                nodes=fetching.nodes(now),
            )
        return outcome

    async def _answered(self, connection: Connection, reply: Reply) -> None:
        if self._crash is not None:
            raise self._crash
        plan, body = self._fetch.under_way, reply.body
        if plan is not None and plan is not self._unsent:  # the response is not applied yet
            if body.error_code != NONE:
                await self._refused(plan, body)
                return
            outcome = self._apply(plan, connection, reply)
            assert outcome is not None
            self._arrived = outcome.delivery
            if outcome.delivery.is_small:
                # A poll may be waiting for just these, and decoding them takes less time than planning.
                self._decode_arrived()
        self._follow_up()

    async def _refused(self, plan: FetchPlan, body: Any) -> None:
        log.debug("fetch session with broker %d: %s", self._node, code_name(body.error_code))
        with self._partitions.lock:
            self._session.answered(body.error_code, body.session_id)
            self._partitions.fetching.failed(plan)
        if body.error_code == ErrorCode.fetch_session_topic_id_error:
            self._client.refresh_soon()
        self._fetcher.wake()  # partitions of a follower belong to the leader's stream now
        await self._back_off()

    def _follow_up(self) -> None:
        """Passes on what the response means for other streams."""
        if (outcome := self._outcome) is None:
            return
        if outcome.was_refused:
            self._partitions.positions_soon()
        if outcome.is_stale:
            self._client.refresh_soon()
        if outcome.wakes_others or not self._fetcher.knows(outcome.nodes):
            self._fetcher.wake()

    async def _failed(self, error: HeadraceError) -> None:
        with self._partitions.lock:
            partitions = self._partitions.fetching.failed(self._fetch.under_way)
            self._session.broken()
        self._unsent = None
        self._follow_up()  # a response may have come at the same moment
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
