"""`AsyncConsumer.run()`: every job is a task of the user's loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from ..machines.workload import Job
from ..records import Record, Records
from .run import Commit, Poll, Rest, Run, Step
from .run_settings import Handler, Progress, RunSettings
from .stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from .consumer import AsyncConsumer

_CANCELLED_WITHIN = 1.0  # seconds that cancelled handlers have to end


async def run_tasks(consumer: AsyncConsumer, handler: Handler, settings: RunSettings) -> Progress:
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
        progress: Progress = end.value
        return progress
    finally:
        tasks.run.end()
        await tasks.cancel()


async def _perform(consumer: AsyncConsumer, step: Step) -> Records | None:
    match step:
        case Poll(max_records):
            return await consumer.poll(0.0, max_records=max_records)
        case Commit(None):
            consumer.commit_async()
        case Commit(timeout):
            await consumer.commit(timeout=timeout)
        case Rest(seconds):
            await consumer._intake.doorbell.wait_async(seconds)
    return None


class _Tasks:
    """The jobs that are under way."""

    def __init__(self, consumer: AsyncConsumer, handler: Handler, settings: RunSettings) -> None:
        self.run = Run(consumer, settings, self._launch)
        self._handler = handler
        self._dead_letter = settings.dead_letter
        self._running: set[asyncio.Task[None]] = set()

    def _launch(self, job: Job[Record]) -> None:
        task = asyncio.get_running_loop().create_task(self._work(job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, job: Job[Record]) -> None:
        goes_on = True
        while goes_on:
            goes_on = False
            try:
                await (self._bury(job) if job.is_burying else self._handle(job))
            except Exception as error:  # noqa: BLE001  # the user's: it is tried again, or raised by run()
                goes_on = self.run.failed(job, error)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self.run.broke_off(job, error)
                    raise
                goes_on = self.run.failed(job, error)  # of something that the handler awaited
            except BaseException as error:  # noqa: BLE001  # SystemExit and the like
                self.run.broke_off(job, error)
            else:
                self.run.succeeded(job)
        self.run.launch()

    async def _handle(self, job: Job[Record]) -> None:
        result = self._handler(job.record)
        if inspect.isawaitable(result):
            await result

    async def _bury(self, job: Job[Record]) -> None:
        assert job.error is not None
        if self.run.letters is not None:
            await asyncio.wrap_future(self.run.letters.write(job.record, job.error, job.attempts))
            return
        assert callable(self._dead_letter)
        result = self._dead_letter(job.record, job.error)
        if inspect.isawaitable(result):
            await result

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_CANCELLED_WITHIN)
