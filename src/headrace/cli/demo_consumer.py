"""A member of a group that tells how fresh its records are, in a process of its own, so that it can be killed.

    python -m headrace.cli.demo_consumer '{"bootstrap.servers": …, "group.id": …}' TOPIC RECORDS_A_SECOND

It prints JSON lines: `[at]` when it is given its partitions, then, a few dozen times a second, `[at, newest, old]`: the
largest timestamp so far, and how many records were older than its being there. Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TELL_EVERY = 20.0  # milliseconds
_POLL = 0.1


def now() -> float:
    return time.time() * 1000


# -- in its process --------------------------------------------------------------------------------------------------


class Diary:
    def __init__(self) -> None:
        self.since = 0.0
        self.newest = 0
        self.old = 0
        self._told = 0.0
        self._told_of_live = False

    def assigned(self) -> None:
        if not self.since:
            self.since = now()
            _say([self.since])

    def tell(self) -> None:
        """After each poll. The first record that was written since it is there is told of at once."""
        at = now()
        is_first = not self._told_of_live and self.newest >= self.since
        if self.newest and (is_first or at - self._told >= _TELL_EVERY):
            self._told = at
            self._told_of_live |= is_first
            _say([at, self.newest, self.old])


def _say(line: list[float]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def read(config: Mapping[str, Any], topic: str, pace: float = 0.0) -> None:
    """Until it is killed. With a pace, the work on its records takes as long as that allows: so many a second."""
    from .. import Consumer, RebalanceListener, TopicPartition

    diary = Diary()

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            if partitions:
                diary.assigned()

    consumer = Consumer(config)
    consumer.subscribe([topic], listener=Listener())
    while True:
        records = consumer.poll(_POLL)
        for record in records:
            timestamp = record.timestamp
            if timestamp > diary.newest:
                diary.newest = timestamp
            if timestamp < diary.since:
                diary.old += 1
        diary.tell()
        if pace:
            time.sleep(len(records) / pace)


# -- where it is watched ---------------------------------------------------------------------------------------------


class ReaderProcess:
    """A command that prints such lines, and what it has told so far. Its end is that of this process, too."""

    def __init__(self, command: Sequence[str]) -> None:
        from ..local.process import GuardedProcess

        self.back = 0.0
        self.told: list[tuple[float, float, int]] = []
        self.said: list[str] = []
        self.is_gone = False
        self._news = threading.Condition()
        output, theirs = os.pipe()
        self._process = GuardedProcess(command, output=theirs)
        os.close(theirs)
        self._thread = threading.Thread(target=self._listen, args=(output,), daemon=True)
        self._thread.start()

    def _listen(self, output: int) -> None:
        with os.fdopen(output) as lines:
            for line in lines:
                with self._news:
                    self._take(line)
                    self._news.notify_all()
        with self._news:
            self.is_gone = True
            self._news.notify_all()

    def _take(self, line: str) -> None:
        if not line.startswith("["):
            self.said.append(line)
            return
        found = json.loads(line)
        if len(found) == 1:
            (self.back,) = found
        else:
            at, newest, old = found
            self.told.append((at, newest, old))

    def wait(self, look: Callable[[], bool], timeout: float) -> None:
        """Raises TimeoutError when it is not so in time, or never will be."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not look():
                left = deadline - time.monotonic()
                if left <= 0 or self.is_gone:
                    raise TimeoutError(f"after {timeout:.0f} s: {self.told[-1:]}, {''.join(self.said[-5:])}")
                self._news.wait(left)

    def kill(self) -> None:
        self._process.close()
        self._thread.join()


def command(config: Mapping[str, Any], topic: str, pace: float = 0.0) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.demo_consumer", json.dumps(dict(config)), topic, str(pace)]


if __name__ == "__main__":
    read(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
