"""`AsyncShareConsumer.run()`: every job is a task of the user's loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from ..records import Record, Records
from .share_run import Commit, Handler, Poll, Rest, ShareProgress, ShareRun, ShareRunSettings, Step
from .stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from .share_consumer import AsyncShareConsumer

_CANCELLED_WITHIN = 1.0  # seconds that cancelled handlers have to end


async def run_share_tasks(consumer: AsyncShareConsumer, handler: Handler, settings: ShareRunSettings) -> ShareProgress:
    """Cancelled, it lets what runs end within the time of `drain`, and cancels the rest; told twice, at once."""
    tasks = _Tasks(consumer, handler, settings)
    steps = tasks.run.steps()
    here = asyncio.current_task()
    assert here is not None
    try:
        with stopped_by_signals(tasks.run.ask_to_stop):
            step = next(steps)
            while True:
                try:
                    records = await _perform(consumer, step)
                except BaseException as error:  # noqa: BLE001  # the generator decides what it means
                    if isinstance(error, asyncio.CancelledError):
                        here.uncancel()  # timeouts on the way to the end would take it for theirs; it is raised there
                    step = steps.throw(error)
                else:
                    step = steps.send(records)
    except StopIteration as end:
        progress: ShareProgress = end.value
        return progress
    finally:
        tasks.run.end()
        await tasks.cancel()


async def _perform(consumer: AsyncShareConsumer, step: Step) -> Records | None:
    match step:
        case Poll(max_records, seconds):
            return await consumer.poll(seconds, max_records=max_records)
        case Commit(timeout):
            await consumer.commit(timeout=timeout)
        case Rest(seconds):
            await consumer._intake.doorbell.wait_async(seconds)
    return None


class _Tasks:
    """Every job is a task of the user's loop."""

    def __init__(self, consumer: AsyncShareConsumer, handler: Handler, settings: ShareRunSettings) -> None:
        self.run = ShareRun(consumer, settings, self._launch)
        self._handler = handler
        self._running: set[asyncio.Task[None]] = set()

    def _launch(self, record: Record) -> None:
        task = asyncio.create_task(self._work(record))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, record: Record) -> None:
        try:
            result = self._handler(record)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:  # noqa: BLE001  # the user's: the record is released
            self.run.failed(record, error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.run.broke_off(record, error)
                raise
            self.run.failed(record, error)  # of something that the handler awaited
        except BaseException as error:  # noqa: BLE001  # SystemExit and the like
            self.run.broke_off(record, error)
        else:
            self.run.succeeded(record, result)
        self.run.launch()

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_CANCELLED_WITHIN)
