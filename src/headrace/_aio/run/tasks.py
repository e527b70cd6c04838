"""run() of the asynchronous consumers: every job is a task in the user's event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import traceback
from collections.abc import Callable
from typing import Any, Generic, Protocol

from ..._arguments import returns_nothing
from ...records import Records
from .loop import AwaitPollSignal, Commit, J, Leave, P, Poll, RunLoop, Step, shown
from .signals import stopped_by_signals
from .transactional_commits import Calls, TransactionalCommits

_CANCELLED_WITHIN = 1.0  # seconds that cancelled handlers have to end


class AsyncRunnable(Protocol):
    """The calls of AsyncConsumer and AsyncShareConsumer that run() makes."""

    async def poll(self, timeout: float = ..., *, max_records: int | None = ...) -> Records: ...
    async def commit(self, *, timeout: float | None = ...) -> object: ...
    def commit_async(self) -> None: ...
    async def unsubscribe(self) -> None: ...


async def run_tasks(kind: str, consumer: AsyncRunnable, loop_with: Callable[[Callable[[J], None]], RunLoop[J, P]]) -> P:
    """`loop_with` creates the loop, given the function that starts a job. After a cancellation, running jobs may end
    within `drain` seconds, then the rest is cancelled; a second cancellation cancels them at once. `kind` is the class
    of the consumer for threads."""
    tasks = _Tasks(kind, loop_with)
    steps = tasks.run.steps()
    here = asyncio.current_task()
    assert here is not None
    try:
        with stopped_by_signals(tasks.run.ask_to_stop):
            step = next(steps)
            while True:
                try:
                    records = await _perform(consumer, tasks.run, step)
                except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                    if isinstance(error, asyncio.CancelledError):
                        here.uncancel()  # otherwise inner timeouts would treat it as theirs; raised at the end
                    step = steps.throw(error)
                else:
                    step = steps.send(records)
    except StopIteration as end:
        progress, failure = end.value
    finally:
        steps.close()  # if a signal handler raised outside of it
        tasks.run.end()
        await tasks.cancel()
    if failure is not None:
        raise failure
    result: P = progress
    return result


def check_coroutine(kind: str, handler: Any) -> None:
    """Raises TypeError for functions that are certainly plain. Others may return an awaitable: their results tell."""
    if returns_nothing(handler):
        raise _coroutines_only(kind)


def _coroutines_only(kind: str) -> TypeError:
    return TypeError(
        f"Async{kind}.run() awaits coroutines, and a plain function as the handler would block the event loop: declare "
        f"it with async def, or use {kind}.run(), which calls plain functions on threads"
    )


async def _perform(consumer: AsyncRunnable, run: RunLoop[J, P], step: Step) -> Records | None:
    match step:
        case Poll(max_records, seconds):
            return await consumer.poll(seconds, max_records=max_records)
        case Commit(timeout, is_last) if run.transactions is not None:
            await _call_producer(run.transactions, run.transactions.steps(timeout, is_last=is_last))
        case Commit(None):
            consumer.commit_async()
        case Commit(timeout):
            await consumer.commit(timeout=timeout)
        case AwaitPollSignal(seconds):
            await run.poll_signal.wait_async(seconds)
        case Leave():
            await consumer.unsubscribe()
    return None


async def _call_producer(transactions: TransactionalCommits, calls: Calls) -> None:
    with contextlib.closing(calls), contextlib.suppress(StopIteration):
        call = next(calls)
        while True:
            try:
                result = await getattr(transactions.producer, call.method)(*call.arguments, **call.keywords)
            except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                call = calls.throw(error)
            else:
                call = calls.send(result)


class _Tasks(Generic[J, P]):
    """The running jobs."""

    def __init__(self, kind: str, loop_with: Callable[[Callable[[J], None]], RunLoop[J, P]]) -> None:
        self._kind = kind
        self.run = loop_with(self._launch)
        self._running: set[asyncio.Task[None]] = set()
        self._ends = False  # run() cancels its jobs itself
        self._refused: TypeError | None = None  # the handler is a plain function

    def _launch(self, job: J) -> None:
        task = asyncio.get_running_loop().create_task(self._work(job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, job: J) -> None:
        task = asyncio.current_task()
        assert task is not None
        worker = _TaskWorker(task)
        continues = True
        while continues:
            continues = False
            if self._refused is not None:  # other jobs have started already
                self.run.aborted(job, self._refused)
                return
            call = self.run.begin(job, worker, _CANCELLED_WITHIN)
            clock = asyncio.timeout(self.run.time_for(job))
            try:
                async with clock:
                    result = self.run.call(job)
                    is_plain = False
                    if isinstance(result, concurrent.futures.Future):
                        result = await asyncio.wrap_future(result)
                    elif inspect.isawaitable(result):
                        result = await result
                    else:
                        is_plain = self.run.is_handler(job)
            except Exception as error:  # noqa: BLE001  # of the handler: it is retried, or raised by run()
                if self.run.end_call(call):
                    is_late = isinstance(error, TimeoutError) and clock.expired()
                    continues = self.run.failed(job, self.run.timed_out(job, error) if is_late else error)
            except asyncio.CancelledError as error:
                counts = self.run.end_call(call)
                is_foreign = not (self._ends or worker.is_abandoned)
                if task.cancelling():
                    if counts:
                        self.run.aborted(job, self.run.cancelled_error(job, error) if is_foreign else error)
                    raise
                if counts:
                    continues = self.run.failed(job, self.run.awaited_cancelled_error(job, error))
            except BaseException as error:  # noqa: BLE001  # SystemExit and the like
                if self.run.end_call(call):
                    self.run.aborted(job, error)
            else:
                if self.run.end_call(call):
                    if is_plain:
                        self._refused = _coroutines_only(self._kind)
                        self.run.aborted(job, self._refused)
                        return
                    self.run.succeeded(job, result)
        self.run.launch()

    async def cancel(self) -> None:
        self._ends = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_CANCELLED_WITHIN)


class _TaskWorker:
    """The task of a call."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.is_abandoned = False

    def stack(self) -> str:
        coroutine: Any = self._task.get_coro()
        frames = []
        while (frame := getattr(coroutine, "cr_frame", getattr(coroutine, "gi_frame", None))) is not None:
            frames.append((frame, frame.f_lineno))
            coroutine = getattr(coroutine, "cr_await", getattr(coroutine, "gi_yieldfrom", None))
        return shown(traceback.StackSummary.extract(iter(frames)))

    def abandon(self) -> None:
        self.is_abandoned = True
        self._task.cancel()
