"""What every part of a consumer stands on: its settings, what its threads share, and its life from start to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from ..arguments import SomePartitions as SomePartitions
from ..arguments import optional_seconds_of, seconds_of
from ..arguments import partitions_in as partitions_in
from ..config import ConsumerConfig
from ..errors import ConfigError, HeadraceError, RequestTimeoutError
from ..types import TopicPartition
from .commits import Commits
from .completions import Completions
from .engine import Engine
from .group import Group, Steps, perform
from .intake import Intake
from .living import CLOSE_TIMEOUT, THREAD_END, Living
from .metrics import metrics_of

T = TypeVar("T")

_LAST_TRY = 0.05  # seconds that leaving the group gets, although the time is up


class Life(Living[Engine]):
    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._config = ConsumerConfig.parse(config, **settings)
        self._intake = Intake(self._config)
        super().__init__(self._intake.doorbell)
        self._completions = Completions() if self._config.commit_mode == "done" else None
        self._commits = Commits(self._config, self._intake, self._completions)
        self._polling = False
        self._retired: asyncio.Task[None] | None = None  # the end of an engine
        self._group: Group | None = None
        if self._config.group_id is not None:
            forget = _nothing if self._completions is None else self._completions.forget
            commits = self._commits
            self._group = Group(self._config, self._intake, commits.before_revoke, commits.after_revoke, forget)

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and the state of every partition."""
        self._gate.check()
        return metrics_of(self._intake, self._engine, self._group)

    async def close(self, *, timeout: float = CLOSE_TIMEOUT, drain: float = 0.0) -> None:
        """Commits what auto-commit still has to, leaves the group, and lets go of everything, within `timeout` seconds
        (and what a listener takes). A commit that does not get through by then is logged, and its records will be read
        again. A static member does not leave: it may come back within the session timeout.

        Waits for no work; `drain` (with commit.mode=done) are seconds to wait first until all of it is done.
        """
        timeout, drain = seconds_of(timeout), seconds_of(drain, "drain")
        if self._gate.is_forked:
            self._shut()
            return
        if not self._gate.is_closed:
            if drain:
                await self._tracked().wait_async(None, drain)
            deadline = time.monotonic() + timeout
            try:
                await perform(self._part(timeout), self._portal)
            finally:
                try:
                    if self._portal.is_open:
                        await self._portal.wait(lambda: self._close(deadline))
                finally:
                    await self._portal.close_async(THREAD_END, self._shut())
        self._commits.run_callbacks()

    async def _end_tasks(self, deadline: float) -> None:
        engine = self._engine
        if engine is None:
            return
        try:
            await self._commits.settle(engine, max(_LAST_TRY, deadline - time.monotonic()))
            await self._commits.farewell(engine, max(_LAST_TRY, deadline - time.monotonic()))
            if self._is_subscribed:
                await self._leave("the consumer is being closed", max(_LAST_TRY, deadline - time.monotonic()))
        finally:
            self._end_engine()
            await engine.close()
            self._intake.doorbell.ring()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._failed()
        await self.close()

    def _failed(self) -> None:
        """What the last poll returned, or the last record of an iteration, was not finished: close() does not commit
        it. With commit.mode=done it is known what was finished."""
        if self._completions is None and not self._gate.is_forked:
            self._intake.take_back()

    def _tracked(self) -> Completions:
        if self._completions is None:
            raise ConfigError("done(), in_flight() and close(drain=…) need commit.mode=done")
        return self._completions

    def _start(self) -> Engine:
        """The tasks are made by the first call that needs one of them."""
        return self._portal.call(self._make_engine) if self._engine is None else self._engine

    def _make_engine(self) -> Engine:
        """On the consumer's thread."""
        if self._engine is None:
            self._commits.attach(self._started(Engine(self._config, self._intake, self._group)))
        assert self._engine is not None
        return self._engine

    async def _timed(
        self,
        what: str,
        timeout: float | None,
        attempt: Callable[[], Awaitable[T]],
        cause: Callable[[], HeadraceError | None] = lambda: None,
    ) -> T:
        """Retries `attempt`, on the consumer's thread, until the time is up or wakeup() is called."""
        seconds = optional_seconds_of(timeout)
        if seconds is None:
            seconds = self._config.default_api_timeout_ms / 1000
        engine = self._start()
        deadline = time.monotonic() + seconds

        async def work() -> T:
            async with self._gate.interruptible():
                try:
                    result: T = await engine.client.with_retries(what, deadline, attempt)
                except RequestTimeoutError as error:
                    if error.__cause__ is None and (last := cause()) is not None:
                        raise RequestTimeoutError(f"{error}. Last error: {last}") from last
                    raise
                return result

        return await self._portal.wait(work)

    # -- the group -----------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Leaves nothing running, until something is subscribed or assigned again."""
        engine = self._engine
        if engine is None:  # a listener, told of the end, has called the same
            return
        await self._commits.settle(engine, CLOSE_TIMEOUT)
        await self._commits.farewell(engine, CLOSE_TIMEOUT)
        if self._is_subscribed:
            await self._leave("the consumer unsubscribed", CLOSE_TIMEOUT)
        self._assign(())
        self._end_engine()
        # An interrupt of the caller (Ctrl-C) cancels this. The next call makes another engine, so this one has to end.
        self._retired = engine.loop.create_task(engine.close(), name="close")
        await asyncio.shield(self._retired)

    def _end_engine(self) -> None:
        """From here on nobody uses it but whoever closes it."""
        self._commits.detach()
        self._ended()

    def _forget(self) -> None:
        """unsubscribe() before anything has begun."""
        if self._group is not None:
            with self._intake.lock:
                self._group.member.leave("")
                self._group.unsubscribed()
        self._assign(())

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        """Exactly these. What was handed out of the others has no meaning any more."""
        gone = self._intake.partitions().difference(partitions)
        self._intake.assign(partitions)
        self._intake.pace.forget()
        if self._completions is not None:
            self._completions.forget(gone)

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.is_subscribed

    def _part(self, timeout: float = CLOSE_TIMEOUT) -> Steps:
        """What has to be done on the user's side before `_leave`."""
        if self._group is not None and self._engine is not None:
            self._commits.parting_timeout = timeout
            try:
                yield from self._group.part()
            finally:
                self._commits.parting_timeout = None

    async def _leave(self, reason: str, timeout: float) -> None:
        group, engine = self._group, self._engine
        assert group is not None
        with self._intake.lock:
            farewell = group.member.leave(reason)
            group.unsubscribed()
        if farewell is not None and engine is not None and engine.errands is not None:
            await engine.errands.leave(farewell, timeout)


def _nothing(partitions: Iterable[TopicPartition]) -> None:
    """Nothing is tracked of these."""
