"""An idempotent producer that writes bursts to all partitions, and reports each delivery."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from chaos.clients.process import Process, start
from chaos.identity import NO_TRANSACTION, Identity, key_of, written_fields
from headrace import Producer
from headrace.errors import HeadraceError, RequestTimeoutError

_PAUSE = 0.8
_MOST_AT_ONCE = 8
_MOST_PENDING = 2_000
_FLUSH_WITHIN = 60.0


class Writer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._producer = Producer(**process.settings, linger_ms=process.dice.choice((0, 5, 20)))
        self._next: dict[int, int] = {}
        self._pending: deque[tuple[int, int, Any]] = deque()

    def run(self) -> None:
        while not self._process.stopping.wait(_PAUSE):
            if len(self._pending) < _MOST_PENDING:
                with self._noting_errors():
                    self._send()
            self._report()
        with self._noting_errors():
            self._producer.flush(timeout=_FLUSH_WITHIN)
        self._report()
        self._producer.close()

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            self._process.ledger.write("error", error=f"{type(error).__name__}: {error}")
            # No metadata or no room in time: nothing was sent. A topic may be missing while it is recreated.
            if not isinstance(error, RequestTimeoutError) and self._process.kind != "moving_writer":
                raise

    def _send(self) -> None:
        process = self._process
        partitions = [info.partition for info in self._producer.partitions_for_topic(process.topic)]
        count = process.dice.randint(1, _MOST_AT_ONCE)
        runs = [(partition, self._next.get(partition, 0), count, NO_TRANSACTION) for partition in partitions]
        process.ledger.write("sent", runs=runs)
        for partition, first, _, _ in runs:
            self._next[partition] = first + count
            for number in range(first, first + count):
                identity = Identity(process.name, partition, number)
                key = key_of(identity)
                value, written = process.value_of(identity), written_fields(identity)
                delivery = self._producer.send(process.topic, value, key, partition=partition, **written)
                self._pending.append((partition, number, delivery))

    def _report(self) -> None:
        acked, failed = [], []
        while self._pending and self._pending[0][2].is_done:
            partition, number, delivery = self._pending.popleft()
            if delivery.error is None:
                acked.append((partition, number, delivery.offset))
            else:
                failed.append((partition, number, str(delivery.error)))
        if acked:
            self._process.ledger.write("acked", records=acked)
        if failed:
            self._process.ledger.write("failed", records=failed)


def main() -> None:
    process = start()
    Writer(process).run()
    process.closed()


if __name__ == "__main__":
    main()
