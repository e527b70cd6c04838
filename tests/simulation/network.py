"""The network between members and their coordinator: it has delays, connections break, and the coordinator moves.

- A member has two connections, one of them for requests that wait at the coordinator. Each connection keeps the order.
- When a connection breaks, all calls in flight on it fail at once. Their requests may still arrive, even after later
  ones; their responses never do.
- While the coordinator moves, requests are rejected or fail. Then the new coordinator loads and resumes from its log.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kio.schema.errors import ErrorCode

from headrace._machines.group.actions import MemberIdentity, Send
from headrace._protocol.messages import Api
from headrace.errors import HeadraceError, NetworkError, RequestTimeoutError
from headrace.types import TopicPartition

from . import wire
from .clock import Timer, VirtualClock

if TYPE_CHECKING:
    from .process import Process


class Coordinator(Protocol):
    def handle(self, api: Api, fields: wire.Fields, reply: Callable[[wire.Fields], None]) -> None: ...
    @staticmethod
    def while_loading(api: Api) -> wire.Fields: ...
    def commit(self, sent: MemberIdentity, partitions: list[TopicPartition]) -> int: ...
    def unload(self) -> None: ...
    def load(self) -> None: ...
    def counts(self, sent: MemberIdentity, slot: Any) -> bool: ...
    @property
    def position(self) -> int: ...


@dataclasses.dataclass(slots=True)
class Weather:
    """The faults of the network: probabilities per request, and delays."""

    breaks: float = 0.0
    arrives_late: float = 0.0
    slow: float = 0.0
    fastest: float = 0.0005
    slowest: float = 0.02
    """The longest delay of normal requests. Slow ones take up to a second."""


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    do: Callable[[Callable[[Any], None]], None]
    answered: Callable[[Any], None]
    failed: Callable[[HeadraceError], None]
    may_arrive_late: bool
    arrived: bool = False
    over: bool = False
    timeout: Timer | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Link:
    """One connection of a member."""

    in_flight: list[_Call] = dataclasses.field(default_factory=list)
    last_arrival: float = 0.0


class Network:
    def __init__(self, clock: VirtualClock, dice: random.Random, coordinator: Coordinator, through_bytes: bool) -> None:
        self.weather = Weather()
        self.requests = 0
        self.is_there = True
        self.moves = 0
        self._clock = clock
        self._dice = dice
        self._coordinator = coordinator
        self._through_bytes = through_bytes
        self._is_loading = False

    # -- members -----------------------------------------------------------------------------------------------

    def send(
        self,
        process: Process,
        action: Send,
        answered: Callable[[Any], None],
        failed: Callable[[HeadraceError], None],
    ) -> None:
        fields = wire.request(action.api, action.fields, self._through_bytes)

        def do(reply: Callable[[Any], None]) -> None:
            if self.is_there:
                self._coordinator.handle(action.api, fields, lambda answer: reply(self._answer(action.api, answer)))
            elif self._is_loading:
                reply(self._answer(action.api, self._coordinator.while_loading(action.api)))
            else:
                code = self._dice.choice([ErrorCode.not_coordinator, ErrorCode.coordinator_not_available])
                reply(self._answer(action.api, {"error_code": code}))

        link = process.parking_link if action.parks else process.link
        # Kafka treats a late JoinGroup as current, with the old owned partitions. No client can prevent that.
        may_arrive_late = process.may_arrive_late and not action.parks
        self._call(process, link, _Call(do, answered, failed, may_arrive_late), action.timeout)

    def commit(
        self,
        process: Process,
        sent: MemberIdentity,
        partitions: list[TopicPartition],
        answered: Callable[[int], None],
        failed: Callable[[HeadraceError], None],
    ) -> None:
        def do(reply: Callable[[Any], None]) -> None:
            if not self.is_there:
                reply(ErrorCode.not_coordinator)
                return
            code = self._coordinator.commit(sent, partitions)
            if code == 0:
                process.world.commit_accepted(process, sent, partitions)
            reply(code)

        self._call(process, process.link, _Call(do, answered, failed, False), 5.0)

    def _answer(self, api: Api, fields: wire.Fields) -> Any:
        return wire.answer(api, fields, self._through_bytes)

    def _call(self, process: Process, link: Link, call: _Call, timeout: float) -> None:
        self.requests += 1
        link.in_flight.append(call)
        call.timeout = self._clock.after(timeout, self._time_out, link, call)
        if process.is_cut_off:
            return
        if self.weather.breaks and self._dice.random() < self.weather.breaks:
            # Before it arrives, afterwards, or while it waits at the coordinator.
            self._clock.after(self._dice.choice([0.0, 0.01, 0.5, 5.0]) * self._dice.random(), self.break_link, link)
        arrival = max(self._clock.now + self._delay(), link.last_arrival)
        link.last_arrival = arrival
        self._clock.at(arrival, self._arrive, process, link, call)

    def _arrive(self, process: Process, link: Link, call: _Call) -> None:
        if call.over:
            return
        call.arrived = True
        if process.is_cut_off:
            return
        call.do(lambda answer: self._reply(process, link, call, answer))

    def _reply(self, process: Process, link: Link, call: _Call, answer: Any) -> None:
        if not call.over and not process.is_cut_off:
            self._clock.after(self._delay(), self._deliver, process, link, call, answer)

    def _deliver(self, process: Process, link: Link, call: _Call, answer: Any) -> None:
        if not call.over and not process.is_cut_off:
            self._end(link, call)
            process.inbox(call.answered, answer)

    def _time_out(self, link: Link, call: _Call) -> None:
        if not call.over:
            self.break_link(link, RequestTimeoutError("no answer"))

    def break_link(self, link: Link, error: HeadraceError | None = None) -> None:
        calls = list(link.in_flight)
        for call in calls:
            self._end(link, call)
            if not call.arrived and call.may_arrive_late and self._dice.random() < self.weather.arrives_late:
                self._clock.after(self._dice.uniform(0, 2), call.do, _nobody)
        for call in calls:
            call.failed(error or NetworkError("the connection broke"))

    def _end(self, link: Link, call: _Call) -> None:
        call.over = True
        link.in_flight.remove(call)
        if call.timeout is not None:
            call.timeout.cancel()

    def _delay(self) -> float:
        weather = self.weather
        if weather.slow and self._dice.random() < weather.slow:
            return self._dice.uniform(0.0, 1.0)
        return self._dice.uniform(weather.fastest, weather.slowest)

    # -- the coordinator ---------------------------------------------------------------------------------------

    def move_coordinator(self, away: float, loading: float) -> None:
        """Move to another broker: it is unknown for a while, and then loads the log."""
        if not self.is_there:
            return
        self.is_there = False
        self.moves += 1
        self._is_loading = False
        self._coordinator.unload()
        self._clock.after(away, self._begin_loading)
        self._clock.after(away + loading, self._arrive_elsewhere)

    def _begin_loading(self) -> None:
        self._is_loading = True

    def _arrive_elsewhere(self) -> None:
        self._is_loading = False
        self.is_there = True
        self._coordinator.load()


def _nobody(answer: Any) -> None:
    """Ignores a response on a broken connection."""
