"""A consumer that reports how fresh its records are. It runs in its own process, so that it can be killed.

    python -m headrace.cli.demo_consumer '{"bootstrap.servers": …, "group.id": …}' TOPIC RECORDS_PER_SECOND

It prints JSON lines: `[at]` when its partitions are assigned and then, a few dozen times per second, a sample
`[at, newest, old]` with the largest timestamp so far and the number of records that were written before the assignment.
Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_REPORT_EVERY = 20.0  # milliseconds
_POLL = 0.1


def now() -> float:
    return time.time() * 1000


# -- in the consumer's process ---------------------------------------------------------------------------------------


class FreshnessReporter:
    """Prints the lines. The consumer updates `newest` and `old`."""

    def __init__(self) -> None:
        self.assigned_at = 0.0
        self.newest = 0
        self.old = 0
        self._reported_at = 0.0
        self._reported_live = False

    def on_assigned(self) -> None:
        if not self.assigned_at:
            self.assigned_at = now()
            _print([self.assigned_at])

    def report(self) -> None:
        """Call it after each poll. The first record that was written after the assignment is reported immediately."""
        at = now()
        is_first = not self._reported_live and self.newest >= self.assigned_at
        if self.newest and (is_first or at - self._reported_at >= _REPORT_EVERY):
            self._reported_at = at
            self._reported_live |= is_first
            _print([at, self.newest, self.old])


def _print(line: list[float]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def consume(config: Mapping[str, Any], topic: str, pace: float = 0.0) -> None:
    """Consume until the process is killed; with a pace, at most that many records per second."""
    from .. import Consumer, RebalanceListener, TopicPartition

    reporter = FreshnessReporter()

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            if partitions:
                reporter.on_assigned()

    consumer = Consumer(config)
    consumer.subscribe([topic], listener=Listener())
    while True:
        records = consumer.poll(_POLL)
        for record in records:
            timestamp = record.timestamp
            if timestamp > reporter.newest:
                reporter.newest = timestamp
            if timestamp < reporter.assigned_at:
                reporter.old += 1
        reporter.report()
        if pace:
            time.sleep(len(records) / pace)


# -- in the demo's process -------------------------------------------------------------------------------------------


class ConsumerProcess:
    """The process of a consumer, and the samples that it has printed so far. It ends when this process ends."""

    def __init__(self, command: Sequence[str]) -> None:
        from ..local.process import GuardedProcess

        self.assigned_at = 0.0
        self.samples: list[tuple[float, float, int]] = []
        self.other_output: list[str] = []
        self.has_ended = False
        self._changed = threading.Condition()
        output, theirs = os.pipe()
        self._process = GuardedProcess(command, output=theirs)
        os.close(theirs)
        self._thread = threading.Thread(target=self._read_output, args=(output,), daemon=True)
        self._thread.start()

    def _read_output(self, output: int) -> None:
        with os.fdopen(output) as lines:
            for line in lines:
                with self._changed:
                    self._parse(line)
                    self._changed.notify_all()
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()

    def _parse(self, line: str) -> None:
        if not line.startswith("["):
            self.other_output.append(line)
            return
        found = json.loads(line)
        if len(found) == 1:
            (self.assigned_at,) = found
        else:
            at, newest, old = found
            self.samples.append((at, newest, old))

    def wait(self, look: Callable[[], bool], timeout: float) -> None:
        """Wait until the condition is met. Raises TimeoutError after the timeout, or if the process has ended."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not look():
                left = deadline - time.monotonic()
                if left <= 0 or self.has_ended:
                    problem = "the consumer has ended" if self.has_ended else f"no success within {timeout:.0f} s"
                    last = f"last sample: {self.samples[-1:]}, last output: {''.join(self.other_output[-5:])}"
                    raise TimeoutError(f"{problem}; {last}")
                self._changed.wait(left)

    def kill(self) -> None:
        self._process.close()
        self._thread.join()


def command(config: Mapping[str, Any], topic: str, pace: float = 0.0) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.demo_consumer", json.dumps(dict(config)), topic, str(pace)]


if __name__ == "__main__":
    consume(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
