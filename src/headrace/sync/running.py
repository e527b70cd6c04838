"""`Consumer.run()`: jobs run on threads of their own; the caller's thread polls.

A thread that has finished a job takes the next one itself. Threads are daemons: a handler that does not end keeps run()
waiting for `drain` seconds, and the process not at all.
"""

from __future__ import annotations

import inspect
import queue
import threading
from typing import TYPE_CHECKING, Any

from ..aio.run import Commit, Poll, Rest, Run, Step
from ..aio.run_settings import Handler, Progress, RunSettings
from ..aio.stop_signals import stopped_by_signals
from ..machines.workload import Job
from ..records import Record, Records

if TYPE_CHECKING:
    from .consumer import Consumer

_THREAD_END = 1.0
_PLAIN_ONLY = "Consumer.run() calls plain functions, on threads: use AsyncConsumer.run() for coroutines"


def run_threads(consumer: Consumer, handler: Handler, settings: RunSettings) -> Progress:
    for function in (handler, settings.dead_letter):
        if inspect.iscoroutinefunction(function):
            raise TypeError(_PLAIN_ONLY)
    threads = _Threads(consumer, handler, settings)
    steps = threads.run.steps()
    try:
        with stopped_by_signals(threads.run.ask_to_stop):
            step = next(steps)
            while True:
                try:
                    records = _perform(consumer, step)
                except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(records)
    except StopIteration as end:
        progress: Progress = end.value
        return progress
    finally:
        threads.run.end()
        threads.end()


def _perform(consumer: Consumer, step: Step) -> Records | None:
    match step:
        case Poll(max_records):
            return consumer.poll(0.0, max_records=max_records)
        case Commit(None):
            consumer.commit_async()
        case Commit(timeout):
            consumer.commit(timeout=timeout)
        case Rest(seconds):
            consumer._aio._intake.doorbell.wait(seconds)
    return None


class _Threads:
    """As many as there are jobs at the same time, made when they are needed."""

    def __init__(self, consumer: Consumer, handler: Handler, settings: RunSettings) -> None:
        self.run = Run(consumer._aio, settings, self._launch)
        self._handler = handler
        self._dead_letter = settings.dead_letter
        self._concurrency = settings.concurrency
        self._jobs: queue.SimpleQueue[Job[Record] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def _launch(self, job: Job[Record]) -> None:
        """On the caller's thread."""
        self._jobs.put(job)
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._serve, name=f"headrace-run-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            while job is not None:
                self._work(job)
                job = self.run.take()

    def _work(self, job: Job[Record]) -> None:
        goes_on = True
        while goes_on:
            goes_on = False
            try:
                result = self._bury(job) if job.is_burying else self._handler(job.record)
            except Exception as error:  # noqa: BLE001  # the user's: it is tried again, or raised by run()
                goes_on = self.run.failed(job, error)
            except BaseException as error:  # noqa: BLE001  # SystemExit and the like
                self.run.broke_off(job, error)
            else:
                if inspect.iscoroutine(result):  # nobody will await it, so nothing was done
                    result.close()
                    self.run.broke_off(job, TypeError(_PLAIN_ONLY))
                else:
                    self.run.succeeded(job)

    def _bury(self, job: Job[Record]) -> Any:
        assert job.error is not None
        if self.run.letters is not None:
            return self.run.letters.write(job.record, job.error, job.attempts).result()
        assert callable(self._dead_letter)
        return self._dead_letter(job.record, job.error)

    def end(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_THREAD_END if self.run.is_idle else 0.0)
