"""Connections of real clients to the model of the brokers, through a network that loses requests and responses.

- A connection keeps the order of its requests and responses. When it breaks, all calls on it fail.
- A request on a broken connection may still arrive, even after later ones on another connection.
- A client that is dead receives nothing, and nothing that it does arrives. What it has sent before may arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace._aio.network import connections as real_connections
from headrace._net.calls import AnswerCallback, Reply
from headrace._protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
)
from headrace._protocol.versions import BrokerVersions
from headrace.config.client import ClientConfig
from headrace.errors import HeadraceError, NetworkError, RequestTimeoutError

from .brokers import Brokers

_LAST_STABLE = 5  # of InitProducerId


@dataclasses.dataclass(slots=True)
class Weather:
    """The faults of the network: probabilities for each request, and delays in seconds."""

    lost_request: float = 0.0
    lost_response: float = 0.0
    arrives_late: float = 0.0
    refuses: float = 0.0
    silent: float = 0.0
    slowest: float = 0.02


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    api: Api
    version: int
    fields: Mapping[str, Any]
    answer: asyncio.Future[Reply] | AnswerCallback
    timer: asyncio.TimerHandle | None = None
    has_arrived: bool = False


class Network:
    def __init__(self, dice: random.Random, brokers: Brokers) -> None:
        self.weather = Weather()
        self.dead: set[str] = set()
        self.requests = 0
        self.lost = 0
        self.watchers: list[Callable[[str, Api], None]] = []
        """Called before each request, with the name of the client."""
        self.brokers = brokers
        self.dice = dice
        self._connections: list[SimulatedConnection] = []
        brokers.on_down = self._cut_broker

    async def open(self, host: str, port: int, config: ClientConfig, *rest: Any) -> SimulatedConnection:
        """In place of `Connection.open`."""
        await asyncio.sleep(self.delay())
        if port in self.brokers.down or config.client_id in self.dead or self.dice.random() < self.weather.refuses:
            raise NetworkError(f"{host}:{port} refuses the connection")
        connection = SimulatedConnection(self, port, config)
        self._connections.append(connection)
        return connection

    def delay(self) -> float:
        return self.dice.uniform(0.0005, self.weather.slowest)

    def kill(self, client: str) -> None:
        """Nothing of this client arrives any more, except for requests that are on their way."""
        self.dead.add(client)
        for each in self._of(lambda each: each.client == client):
            each.lose(NetworkError("killed"))

    def _cut_broker(self, node: int) -> None:
        for each in self._of(lambda each: each.node == node):
            each.lose(NetworkError("the broker has died"))

    def cut_some(self) -> None:
        for each in self._of(lambda each: self.dice.random() < 0.5):
            each.lose(NetworkError("cut"))

    def _of(self, which: Callable[[SimulatedConnection], bool]) -> list[SimulatedConnection]:
        self._connections = [each for each in self._connections if each.is_open]
        return [each for each in self._connections if which(each)]


class SimulatedConnection:
    """What clients use of `Connection`."""

    descriptor_to_lend = None
    unsent_bytes = 0
    throttled_for = 0.0

    def __init__(self, network: Network, node: int, config: ClientConfig) -> None:
        self.host = f"broker:{node}"
        self.node = node
        self.client = config.client_id
        self.failure: HeadraceError | None = None
        self.last_used = 0.0
        self.versions = BrokerVersions(self.host, _Ranges(), dict(network.brokers.features), 1)
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._timeout = config.request_timeout_ms / 1000
        self._calls: deque[_Call] = deque()
        self._last_arrival = self._last_response = 0.0

    @property
    def is_open(self) -> bool:
        return self.failure is None

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def take_back(self) -> None:
        """It is never lent."""

    def close(self) -> None:
        self.lose(NetworkError("closed"))

    async def call(
        self, api: Api, fields: Mapping[str, Any], *, highest: int | None = None, timeout: float | None = None
    ) -> Reply:
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._send(api, fields, answer, highest, timeout)
        return await answer

    def start_with(
        self, api: Api, fields: Mapping[str, Any], on_answer: Callable[[Any], None], *, highest: int | None = None
    ) -> None:
        self._send(api, fields, AnswerCallback(on_answer), highest, None)

    def _send(
        self, api: Api, fields: Mapping[str, Any], answer: Any, highest: int | None, timeout: float | None
    ) -> None:
        if self.failure is not None:
            raise NetworkError("the connection is closed") from self.failure
        network = self._network
        version = self.versions.pick(api, highest)
        for watcher in network.watchers:
            watcher(self.client, api)
        if self.failure is not None or self.client in network.dead:
            raise NetworkError("the connection is closed") from self.failure
        call = _Call(api, version, _copied(api, fields), answer)
        self.last_used = self._loop.time()
        self._calls.append(call)
        call.timer = self._loop.call_later(timeout or self._timeout, self._timed_out)
        network.requests += 1
        fate = network.dice.random()
        weather = network.weather
        if fate < weather.lost_request:
            network.lost += 1
            self._loop.call_later(network.delay(), self.lose, NetworkError("lost"))
            return
        fate -= weather.lost_request
        if fate < weather.silent:  # neither a response nor an error: it times out
            network.lost += 1
            return
        self._last_arrival = max(self._last_arrival, self._loop.time() + network.delay())
        is_answered = fate - weather.silent >= weather.lost_response
        self._loop.call_at(self._last_arrival, self._arrive, call, is_answered)

    def _arrive(self, call: _Call, is_answered: bool) -> None:
        if self.failure is not None:
            return
        call.has_arrived = True

        def reply(body: Any) -> None:
            if self.failure is not None:
                return
            self._last_response = max(self._last_response, self._loop.time() + self._network.delay())
            if is_answered:
                self._loop.call_at(self._last_response, self._deliver, call, body)
            else:
                self._network.lost += 1
                self._loop.call_at(self._last_response, self.lose, NetworkError("the response is lost"))

        self._network.brokers.handle(self.node, call.api.name, call.version, call.fields, reply)

    def _deliver(self, call: _Call, body: Any) -> None:
        if self.failure is None:
            self._calls.remove(call)
            _end(call)
            if not call.answer.done():
                call.answer.set_result(Reply(body, call.version))

    def _timed_out(self) -> None:
        self.lose(RequestTimeoutError("no answer"))

    def lose(self, error: HeadraceError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        network, calls = self._network, list(self._calls)
        self._calls.clear()
        for call in calls:
            _end(call)
            if not call.has_arrived and self._may_be_late(call):
                self._loop.call_later(network.dice.choice((0.01, 0.5, 5.0)), self._arrive_late, call)
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)
                call.answer.exception()

    def _may_be_late(self, call: _Call) -> bool:
        network = self._network
        return _is_told_apart(call) and network.dice.random() < network.weather.arrives_late

    def _arrive_late(self, call: _Call) -> None:
        brokers = self._network.brokers
        if self.node not in brokers.down:
            usurped = brokers.transactions.usurped
            brokers.handle(self.node, call.api.name, call.version, call.fields, _nobody)
            brokers.transactions.usurped = usurped  # nobody can prevent that


class _Ranges(dict[int, tuple[int, int]]):
    """Brokers support every version, except for the unstable ones."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: int) -> tuple[int, int]:
        return 0, _LAST_STABLE if key == INIT_PRODUCER_ID.key else 99


def _copied(api: Api, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """As bytes on the wire: the sender stamps the next attempt on the same memory."""
    if api.key != PRODUCE.key:
        return fields
    return {
        **fields,
        "topic_data": [
            {**topic, "partition_data": [{**each, "data": bytes(each["records"])} for each in topic["partition_data"]]}
            for topic in fields["topic_data"]
        ],
    }


def _is_told_apart(call: _Call) -> bool:
    """With transaction.version 1, no coordinator can tell which transaction a late request belongs to."""
    if call.api.key in (ADD_OFFSETS_TO_TXN.key, ADD_PARTITIONS_TO_TXN.key):
        return False
    return call.version >= 5 or call.api.key not in (END_TXN.key, TXN_OFFSET_COMMIT.key)


def _end(call: _Call) -> None:
    if call.timer is not None:
        call.timer.cancel()


def _nobody(body: Any) -> None:
    """The connection is broken."""


@contextlib.contextmanager
def simulated(network: Network) -> Iterator[None]:
    """Clients that are created meanwhile use the network."""
    before = real_connections.Connection
    real_connections.Connection = network  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        real_connections.Connection = before  # type: ignore[misc]
