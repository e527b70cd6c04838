"""run() of a share consumer that is traced: see `_aio/telemetry.py`."""

from __future__ import annotations

from typing import Any

from ...records import Record
from ..telemetry import ConsumerTelemetry
from .share_run import ShareRun


class TracedShareRun(ShareRun):
    def __init__(self, telemetry: ConsumerTelemetry, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._telemetry = telemetry

    def call(self, record: Record) -> Any:
        return self._telemetry.call_handler(self._handler, record, record.delivery_count or 1)
