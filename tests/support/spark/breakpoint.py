"""A breakpoint in the middle of a batch, where a query waits until the test releases it.

The rows pass through a Python function that blocks at one of them. Spark reads some megabytes ahead of it, as much as
fits into the sockets between its processes, so the topic must be larger.
"""

from __future__ import annotations

from pathlib import Path

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from support.harness.waiting import wait_for

# The size of a topic that is large enough, and options to read it in small steps.
RECORDS = 4000
RECORD_BYTES = 10_000
SMALL_STEPS = {"kafka.max.partition.fetch.bytes": "100000", "kafka.queued.max.bytes": "1000000"}
_PATIENCE = 150.0


class BatchBreakpoint:
    """A breakpoint at offset 100 of partition 0."""

    def __init__(self, directory: Path) -> None:
        self._reached = directory / "breakpoint-reached"
        self._open = directory / "breakpoint-open"

    def before(self, frame: DataFrame) -> DataFrame:
        reached, opened, patience = str(self._reached), str(self._open), _PATIENCE

        # A local function is sent to the workers by value: they cannot import this module.
        def passes(partition: int, offset: int, value: bytes) -> bool:
            import os
            import time

            if (partition, offset) == (0, 100):
                with open(f"{reached}.new", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(f"{reached}.new", reached)
                deadline = time.monotonic() + patience
                while not os.path.exists(opened):
                    if time.monotonic() > deadline:
                        raise TimeoutError("the breakpoint was not released in time")
                    time.sleep(0.02)  # polling for a file of the test process
            return True

        return frame.where(F.udf(passes, "boolean", useArrow=False)("partition", "offset", "value"))

    def wait(self) -> int:
        """Wait until the query reaches the breakpoint; return the pid of the waiting worker."""
        wait_for("a task at the breakpoint", self._reached.exists, _PATIENCE)
        return int(self._reached.read_text())

    def executor(self) -> psutil.Process:
        """The JVM of the waiting task."""
        parents = psutil.Process(self.wait()).parents()
        return next(each for each in parents if any("CoarseGrainedExecutorBackend" in word for word in each.cmdline()))

    def open(self) -> None:
        self._open.touch()
