"""A group member with `enable.parallel.rebalance`: `python -m support.programs.two_lane_member TOPIC PLAN`.

The plan is a JSON object:

    settings       settings of the Consumer
    mode           "auto": auto-commit; "manual": a commit after each poll; "done": done() in any order, auto-commit
    work           seconds of simulated work for the records of a poll
    crash          where it kills itself, one of `members/lane_crash_points.py`
    before_commit  "manual" only: minimum number of records of each lane before the first commit
    rests          after the first commit and some more records, it pauses all partitions and prints `rests`
    lives          a list of `before_commit` values: one process after the other, each killed by SIGKILL after it has
                   read that many records, committed them, and read some more

It prints each event (see `lane_ledger.py`) before it acts on it, so that the done records are known when it dies. It
ends with an error if a record's value is not its offset. SIGTERM closes the consumer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any

from headrace import Consumer, RebalanceListener, Record, TopicPartition
from headrace.errors import CommitFailedError
from support.members import lane_crash_points
from support.members.events import milliseconds

_POLL = 0.05
_LONGEST_LIFE = 60  # seconds; a forked process never lives longer


class TwoLaneMember(RebalanceListener):
    def __init__(self, topic: str, plan: dict[str, Any]) -> None:
        self._mode = plan.get("mode", "manual")
        self._work = plan.get("work", 0.0)
        self._before_commit: dict[str, int] = plan.get("before_commit", {})
        self._rests = plan.get("rests", False)
        self._handed: Counter[str | None] = Counter()
        self._in_hand: list[Record] = []
        self._chance = random.Random(os.getpid())
        self._is_running = True
        self._consumer = Consumer(enable_parallel_rebalance=True, **plan["settings"])
        self._consumer.subscribe([topic], listener=self)
        signal.signal(signal.SIGTERM, self.stop)  # a signal may follow once this is printed
        say("started")

    def stop(self, *_: object) -> None:
        self._is_running = False

    def run(self) -> None:
        while self._is_running:
            self.take()
            if self._mode == "manual" and self.has_enough:
                self.commit()
                if self._rests:
                    self.rest()
        self._finish(self._in_hand)
        self._consumer.close()
        say("closed")

    def rest(self) -> None:
        self.take()
        self._consumer.pause(self._consumer.assignment())
        say("rests")
        while self._is_running:
            assert not self._consumer.poll(_POLL)

    def run_until_crash(self) -> None:
        while not self.has_enough:
            self.take()
        self.commit()
        self.take()
        lane_crash_points.die("in the middle of it")

    @property
    def has_enough(self) -> bool:
        return all(self._handed[lane] >= count for lane, count in self._before_commit.items())

    def take(self) -> None:
        records = list(self._consumer.poll(_POLL))
        for record in records:
            assert record.value == b"%d" % record.offset, record
        if not records:
            return
        say("handed", runs=_runs(records))
        self._handed.update(record.lane for record in records)
        if self._work:
            time.sleep(self._work)  # simulated work
        if self._mode == "done":
            self._in_hand += records
            self._chance.shuffle(self._in_hand)
            half = len(self._in_hand) // 2
            self._finish(self._in_hand[:half])
            del self._in_hand[:half]

    def _finish(self, records: list[Record]) -> None:
        if records:
            say("done", runs=_runs(records))
            for record in records:
                self._consumer.done(record)

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except CommitFailedError as error:  # the machine was busy for longer than a session
            say("refused", error=str(error))
        else:
            say("committed")

    # Called inside poll() and close().

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        say("assigned", partitions=[tp.partition for tp in partitions])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._give_up(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._give_up(partitions)

    def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        self._in_hand = [each for each in self._in_hand if (each.topic, each.partition) not in partitions]
        say("gave_up", partitions=[tp.partition for tp in partitions])


def _runs(records: Iterable[Record]) -> list[tuple[str | None, int, int, int]]:
    """Ranges of offsets as (lane, partition, start, end)."""
    keys = sorted(
        ((each.lane, each.partition, each.offset) for each in records), key=lambda key: (str(key[0]), *key[1:])
    )
    runs = []
    for _, run in groupby(enumerate(keys), lambda each: (each[1][:2], each[1][2] - each[0])):
        found = [key for _, key in run]
        lane, partition, first = found[0]
        runs.append((lane, partition, first, first + len(found)))
    return runs


def say(name: str, **fields: object) -> None:
    """Write one line at once, so that a reader never sees half of it."""
    os.write(1, (json.dumps({"at": milliseconds(), "name": name, "life": os.getpid(), **fields}) + "\n").encode())


def live(topic: str, plan: dict[str, Any]) -> None:
    TwoLaneMember(topic, plan).run()


def live_and_crash(topic: str, plan: dict[str, Any], before_commit: dict[str, int]) -> None:
    """Run one life in a forked process, which saves the import time. This process must not have threads yet."""
    child = os.fork()
    if child == 0:
        signal.alarm(_LONGEST_LIFE)
        try:
            TwoLaneMember(topic, plan | {"before_commit": before_commit}).run_until_crash()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"life {child} ended with {status}"


def main(topic: str, plan: dict[str, Any]) -> None:
    if (point := plan.get("crash")) is not None:
        lane_crash_points.place(point)
    for before_commit in plan.get("lives", ()):
        live_and_crash(topic, plan, before_commit)
    if "lives" not in plan:
        live(topic, plan)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
