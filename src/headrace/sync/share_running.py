"""`ShareConsumer.run()`: jobs run on threads of their own; the caller's thread polls.

Threads are daemons: a handler that does not end keeps run() waiting for `drain` seconds, and the process not at all.
"""

from __future__ import annotations

import inspect
import queue
import threading
from typing import TYPE_CHECKING

from ..aio.share_run import Commit, Handler, Poll, Rest, ShareProgress, ShareRun, ShareRunSettings, Step
from ..aio.stop_signals import stopped_by_signals
from ..records import Record, Records

if TYPE_CHECKING:
    from .share_consumer import ShareConsumer

_THREAD_END = 1.0
_PLAIN_ONLY = "ShareConsumer.run() calls plain functions, on threads: use AsyncShareConsumer.run() for coroutines"


def run_share_threads(consumer: ShareConsumer, handler: Handler, settings: ShareRunSettings) -> ShareProgress:
    if inspect.iscoroutinefunction(handler):
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
        progress: ShareProgress = end.value
        return progress
    finally:
        threads.run.end()
        threads.end()


def _perform(consumer: ShareConsumer, step: Step) -> Records | None:
    match step:
        case Poll(max_records, seconds):
            return consumer.poll(seconds, max_records=max_records)
        case Commit(timeout):
            consumer.commit(timeout=timeout)
        case Rest(seconds):
            consumer._aio._intake.doorbell.wait(seconds)
    return None


class _Threads:
    """As many as there are jobs at the same time, made when they are needed."""

    def __init__(self, consumer: ShareConsumer, handler: Handler, settings: ShareRunSettings) -> None:
        self.run = ShareRun(consumer._aio, settings, self._launch)
        self._handler = handler
        self._concurrency = settings.concurrency
        self._jobs: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def _launch(self, record: Record) -> None:
        """On the caller's thread."""
        self._jobs.put(record)
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._serve, name=f"headrace-run-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (record := self._jobs.get()) is not None:
            while record is not None:
                self._work(record)
                record = self.run.take()

    def _work(self, record: Record) -> None:
        try:
            result = self._handler(record)
        except Exception as error:  # noqa: BLE001  # the user's: the record is released
            self.run.failed(record, error)
        except BaseException as error:  # noqa: BLE001  # SystemExit and the like
            self.run.broke_off(record, error)
        else:
            if inspect.iscoroutine(result):  # nobody will await it, so nothing was done
                result.close()
                self.run.broke_off(record, TypeError(_PLAIN_ONLY))
            else:
                self.run.succeeded(record, result)

    def end(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_THREAD_END if self.run.is_idle else 0.0)
