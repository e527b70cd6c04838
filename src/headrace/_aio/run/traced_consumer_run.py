"""run() of a consumer that is traced: see `_aio/telemetry.py`."""

from __future__ import annotations

from typing import Any

from ..._machines.run.scheduler import Job
from ...records import Record
from ..telemetry import ConsumerTelemetry
from .consumer_run import ConsumerRun


class TracedConsumerRun(ConsumerRun):
    def __init__(self, telemetry: ConsumerTelemetry, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._telemetry = telemetry

    def call(self, job: Job[Record]) -> Any:
        if not job.is_dead_letter:
            return self._telemetry.call_handler(self._handler, job.record, job.attempts + 1)
        assert job.error is not None
        call = super().call
        return self._telemetry.call_dead_letter(lambda: call(job), job.record, job.error)
