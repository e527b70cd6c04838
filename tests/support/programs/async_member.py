"""A member of a group with headrace's AsyncConsumer: `python -m support.programs.async_member TOPIC CONFIG`.

It behaves like `headrace_member.py`, and ends with an error if a record's value is not its offset.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Collection, Mapping
from typing import Any

from headrace import AsyncConsumer, RebalanceListener, TopicPartition
from headrace.errors import HeadraceError
from support.members.event_writer import EventWriter
from support.members.events import TopicAndPartition

_POLL = 0.1


class AsyncMember(RebalanceListener):
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._consumer = AsyncConsumer(config)
        self._events = EventWriter(_never, HeadraceError)
        self._running = True

    def stop(self) -> None:
        self._running = False

    async def run(self, topic: str) -> None:
        self._events.started()
        self._consumer.subscribe([topic], listener=self)
        while self._running:
            records = await self._consumer.poll(_POLL)
            for record in records:
                assert record.value == b"%d" % record.offset, record
            self._events.read({tp: [record.offset for record in records[tp]] for tp in records.partitions})
            await self._settle()
        await self._consumer.close()
        self._events.closed()

    async def _settle(self) -> None:
        if not self._events.due:
            return
        try:
            await self._consumer.commit({TopicPartition(*tp): offset for tp, offset in self._events.due.items()})
        except HeadraceError as problem:
            self._events.settled(problem)
        else:
            self._events.settled()

    # Called from within poll() and close().

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._events.assigned(partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._settle()
        self._events.gave_up(partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._events.lost(partitions)


def _never(offsets: Mapping[TopicAndPartition, int]) -> None:
    raise AssertionError("this member awaits its commits")


async def main(topic: str, config: Mapping[str, Any]) -> None:
    member = AsyncMember(config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop)
    await member.run(topic)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
