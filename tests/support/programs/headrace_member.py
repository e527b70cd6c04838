"""A group member with headrace, as a program: `python -m support.programs.headrace_member TOPIC CONFIG`.

It behaves like VerifiableConsumer (see `members/commands.py`).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Collection, Mapping
from typing import Any

from headrace import Consumer, RebalanceListener, Records, TopicPartition
from headrace.errors import HeadraceError
from support.members.event_writer import EventWriter
from support.members.events import TopicAndPartition

_POLL = 0.1


class Member(RebalanceListener):
    def __init__(self, topic: str, config: Mapping[str, Any]) -> None:
        self._consumer = Consumer(config)
        self._events = EventWriter(self._commit, HeadraceError)
        self._running = True
        self._events.started()
        self._consumer.subscribe([topic], listener=self)

    def stop(self, *_: object) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            records = self._consumer.poll(_POLL)
            self._events.read({tp: [record.offset for record in records[tp]] for tp in records.partitions})
            self.work(records)
            self._events.settle()
        self._consumer.close()
        self._events.closed()

    def print_state(self, *_: object) -> None:
        """A signal handler that prints the state of fetching, to find out why nothing is read."""
        runtime, buffer = self._consumer._parts.lifecycle.runtime, self._consumer._parts.buffer
        names = ("phase", "in_flight", "fetch_offset", "position", "readable_end", "available", "undecoded")
        flags = ("withheld", "paused", "fault", "backoff_until")
        for state in buffer.assignment:
            found = {name: str(getattr(state, name)) for name in (*names, *flags)}
            print(f"state of {state.tp}: {found}, filled {state in buffer.assignment._filled}", flush=True)
        for (node, number), stream in runtime.fetcher._streams.items() if runtime is not None else ():
            calls = 0 if stream._connection is None else len(stream._connection._calls)
            asked = {tip.partition: want.offset for tip, want in stream._session._sent.items()}
            quiet = 0.0 if stream._connection is None else stream._fetcher._loop.time() - stream._connection.last_used
            what = f"parked {stream._parked}, looks {stream.look.is_set()}, {calls} calls, quiet for {quiet:.1f} s"
            what += f", asked for {asked}"
            print(f"state of stream {number} to {node}: {what}", flush=True)
        print("state: end", flush=True)

    def work(self, records: Records) -> None:
        """Processing of records before their commit. Subclasses override it."""

    def _commit(self, offsets: Mapping[TopicAndPartition, int]) -> None:
        self._consumer.commit({TopicPartition(*tp): offset for tp, offset in offsets.items()})

    # Called inside poll() and close().

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._events.assigned(partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._events.revoked(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._events.lost(partitions)


if __name__ == "__main__":
    member = Member(sys.argv[1], json.loads(sys.argv[2]))
    signal.signal(signal.SIGTERM, member.stop)
    signal.signal(signal.SIGUSR1, member.print_state)
    member.run()
