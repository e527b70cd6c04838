"""run() of the consumers for threads: jobs run on threads of their own; the caller's thread polls.

A thread that has finished a job takes the next one itself. Threads are daemons: a handler that does not return delays
the end of run() by `drain` seconds, and the end of the process not at all. An overdue handler is abandoned: its thread
ends when the handler returns, and the next job that is launched gets a new thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Generic, Protocol

from .._aio.run.loop import AwaitPollSignal, Commit, J, Leave, P, Poll, RunLoop, Step, shown
from .._aio.run.signals import stopped_by_signals
from .._aio.run.transactional_commits import Calls, TransactionalCommits
from ..records import Records

_THREAD_END = 1.0


class Runnable(Protocol):
    """The calls of Consumer and ShareConsumer that run() makes."""

    def poll(self, timeout: float = ..., *, max_records: int | None = ...) -> Records: ...
    def commit(self, *, timeout: float | None = ...) -> object: ...
    def commit_async(self) -> None: ...
    def unsubscribe(self) -> None: ...


def run_threads(kind: str, consumer: Runnable, loop_with: Callable[[Callable[[J], None]], RunLoop[J, P]]) -> P:
    """`loop_with` creates the loop, given the function that starts a job. `kind` is the class of the consumer."""
    threads = _Threads(kind, loop_with)
    steps = threads.run.steps()
    try:
        with stopped_by_signals(threads.run.ask_to_stop):
            step = next(steps)
            while True:
                try:
                    records = _perform(consumer, threads.run, step)
                except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(records)
    except StopIteration as end:
        progress, failure = end.value
    finally:
        try:
            steps.close()  # if a signal handler raised outside of it
            threads.run.end()
        finally:
            threads.dismiss()  # a single call of a C function: Ctrl-C comes before it, into this block, or after it
            threads.join()
    if failure is not None:
        raise failure
    result: P = progress
    return result


def check_plain(kind: str, *functions: Any) -> None:
    """Raises TypeError for coroutine functions."""
    if any(map(inspect.iscoroutinefunction, functions)):
        raise _plain_only(kind)


def _plain_only(kind: str) -> TypeError:
    return TypeError(f"{kind}.run() calls plain functions, on threads: use Async{kind}.run() for coroutines")


def _perform(consumer: Runnable, run: RunLoop[J, P], step: Step) -> Records | None:
    match step:
        case Poll(max_records, seconds):
            return consumer.poll(seconds, max_records=max_records)
        case Commit(timeout, is_last) if run.transactions is not None:
            _call_producer(run.transactions, run.transactions.steps(timeout, is_last=is_last))
        case Commit(None):
            consumer.commit_async()
        case Commit(timeout):
            consumer.commit(timeout=timeout)
        case AwaitPollSignal(seconds):
            run.poll_signal.wait(seconds)
        case Leave():
            consumer.unsubscribe()
    return None


def _call_producer(transactions: TransactionalCommits, calls: Calls) -> None:
    with contextlib.closing(calls), contextlib.suppress(StopIteration):
        call = next(calls)
        while True:
            try:
                result = getattr(transactions.producer, call.method)(*call.arguments, **call.keywords)
            except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                call = calls.throw(error)
            else:
                call = calls.send(result)


class _Threads(Generic[J, P]):
    """As many threads as there are jobs at the same time, created when they are needed."""

    def __init__(self, kind: str, loop_with: Callable[[Callable[[J], None]], RunLoop[J, P]]) -> None:
        self._kind = kind
        self.run = loop_with(self._launch)
        self._jobs: queue.SimpleQueue[J | None] = queue.SimpleQueue()
        # Each thread that gets None passes it on to the next one.
        self.dismiss = functools.partial(self._jobs.put, None)
        self._threads: list[threading.Thread] = []  # without abandoned ones; belongs to the caller's thread
        self._numbers = itertools.count()

    def _launch(self, job: J) -> None:
        """On the caller's thread."""
        self._jobs.put(job)
        if len(self._threads) < self.run.concurrency:
            name = f"headrace-run-{next(self._numbers)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        worker = _ThreadWorker(threading.current_thread(), self._threads)
        while (job := self._jobs.get()) is not None:
            while job is not None:
                if not self._work(job, worker):
                    return
                job = self.run.take()
        self.dismiss()

    def _work(self, job: J, worker: _ThreadWorker) -> bool:
        """False if the call was abandoned: this thread may have been replaced, and must end."""
        continues = True
        while continues:
            continues = False
            call = self.run.begin(job, worker)
            try:
                result = self.run.call(job)
                if isinstance(result, concurrent.futures.Future):
                    result = result.result()
            except Exception as error:  # noqa: BLE001  # the user's: it is retried, or raised by run()
                if not self.run.end_call(call):
                    return False
                continues = self.run.failed(job, error)
            except BaseException as error:  # noqa: BLE001  # SystemExit and the like
                if not self.run.end_call(call):
                    return False
                self.run.aborted(job, error)
            else:
                if not self.run.end_call(call):
                    return False
                if inspect.iscoroutine(result):  # nobody will await it, so nothing was processed
                    result.close()
                    self.run.aborted(job, _plain_only(self._kind))
                else:
                    self.run.succeeded(job, result)
        return True

    def join(self) -> None:
        for thread in (each for each in self._threads if each.ident is not None):  # one may not have been started
            thread.join(_THREAD_END if not self.run.running else 0.0)


class _ThreadWorker:
    """The thread of a call."""

    def __init__(self, thread: threading.Thread, threads: list[threading.Thread]) -> None:
        self._thread = thread
        self._threads = threads

    def stack(self) -> str:
        assert self._thread.ident is not None
        frame = sys._current_frames().get(self._thread.ident)
        return "" if frame is None else shown(traceback.extract_stack(frame))

    def abandon(self) -> None:
        """On the caller's thread. Threads cannot be cancelled."""
        if self._thread in self._threads:
            self._threads.remove(self._thread)
