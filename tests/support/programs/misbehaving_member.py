"""A headrace member that can misbehave: `python -m support.programs.misbehaving_member TOPIC CONFIG`.

    SIGUSR1   stop in user code after the next records, between reading and committing, and print `held`
    SIGQUIT   the same in a busy loop, like long Python work or a livelock
    SIGHUP    stop in the assignor at the next rebalance, if this member is the leader, and print `assigning`
    SIGUSR2   continue
    SIGTERM   close the consumer and end

Otherwise it behaves like `headrace_member.py`. It ends with an error if a record's value is not its offset.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from headrace import Records, TopicPartition
from headrace._machines.group.assignors import assignors_of
from support.programs.headrace_member import Member

_PATIENCE = 150.0
_LOOK = 0.01


class GatedAssignor:
    """One of headrace's assignors, which waits while the gate is closed."""

    def __init__(self, name: str) -> None:
        (self._own,) = assignors_of(name)
        self.name = self._own.name
        self.cooperative = self._own.cooperative
        self.user_data = self._own.user_data
        self.is_open = threading.Event()
        self.is_open.set()

    def assign(self, members: Any, partitions: Any) -> Mapping[str, Collection[TopicPartition]]:
        if not self.is_open.is_set():
            _say("assigning")
            self.is_open.wait(_PATIENCE)
        return self._own.assign(members, partitions)


class MisbehavingMember(Member):
    def __init__(self, topic: str, config: Mapping[str, Any]) -> None:
        self._is_held = False
        self._is_busy = False
        self._guard: GatedAssignor | None = None
        if (strategy := config.get("partition.assignment.strategy")) is not None:
            self._guard = GatedAssignor(strategy)
            config = {**config, "partition.assignment.strategy": [self._guard]}
        super().__init__(topic, config)

    def hold(self, number: int, _: object) -> None:
        self._is_held = True
        self._is_busy = number == signal.SIGQUIT

    def hold_assigning(self, *_: object) -> None:
        assert self._guard is not None
        self._guard.is_open.clear()

    def release(self, *_: object) -> None:
        self._is_held = False
        if self._guard is not None:
            self._guard.is_open.set()

    def work(self, records: Records) -> None:
        for record in records:
            assert record.value == b"%d" % record.offset, record
        if self._is_held and records:
            _say("held")
            while self._is_held and self._running:
                if not self._is_busy:
                    time.sleep(_LOOK)  # polling a flag that a signal handler sets


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    member = MisbehavingMember(sys.argv[1], json.loads(sys.argv[2]))
    signal.signal(signal.SIGTERM, member.stop)
    signal.signal(signal.SIGUSR1, member.hold)
    signal.signal(signal.SIGQUIT, member.hold)
    signal.signal(signal.SIGUSR2, member.release)
    signal.signal(signal.SIGHUP, member.hold_assigning)
    member.run()
