"""Share consumers in both modes of acknowledgement."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from chaos.clients.process import Process, runs_of, start
from headrace import Record, ShareConsumer, TopicPartition
from headrace.errors import HeadraceError

_POLL = 0.3
_RELEASED = 0.02
_COMMIT_WITHIN = 20.0


class Sharer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_explicit = process.kind == "share_explicit"
        self._pending: dict[tuple[int, int], deque[bool]] = defaultdict(deque)
        """For each record, whether its acknowledgements without a result are releases."""
        self._consumer = ShareConsumer(
            **process.settings,
            group_id=process.group,
            max_poll_records=200,
            share_acknowledgement_mode="explicit" if self._is_explicit else "implicit",
        )
        self._consumer.set_acknowledgement_commit_callback(self._settled)

    def run(self) -> None:
        self._consumer.subscribe([self._process.topic])
        while not self._process.stopping.is_set():
            self._poll()
        self._consumer.commit(timeout=_COMMIT_WITHIN)
        self._consumer.close()

    def _poll(self) -> None:
        try:
            records = self._consumer.poll(_POLL)
        except HeadraceError as error:
            self._process.ledger.write("error", error=f"{type(error).__name__}: {error}")
            if not error.retriable:
                raise
            return
        if not records:
            return
        by_count: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            by_count[record.delivery_count or 0].append(record)
        for count, found in by_count.items():
            self._process.ledger.write("received", runs=runs_of(found), delivery=count)
        if self._is_explicit:
            for record in records:
                release = record.delivery_count == 1 and self._process.dice.random() < _RELEASED
                self._pending[record.partition, record.offset].append(release)
                self._consumer.acknowledge(record, "release" if release else "accept")

    def _settled(self, offsets: dict[TopicPartition, list[range]], error: HeadraceError | None) -> None:
        """Report what was accepted. Results of one record come in the order of its acknowledgements."""
        accepted = [
            (tp.partition, offset)
            for tp, ranges in offsets.items()
            for found in ranges
            for offset in found
            if not self._is_release(tp.partition, offset)
        ]
        runs = list(_ranges(accepted))
        if error is None:
            self._process.ledger.write("accepted", ranges=runs)
        else:
            self._process.ledger.write("rejected", ranges=runs, error=f"{type(error).__name__}: {error}")

    def _is_release(self, partition: int, offset: int) -> bool:
        pending = self._pending.get((partition, offset))
        if not pending:
            return False
        release = pending.popleft()
        if not pending:
            del self._pending[partition, offset]
        return release


def _ranges(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    for _, found in groupby(enumerate(sorted(places)), lambda each: (each[1][0], each[1][1] - each[0])):
        run = [place for _, place in found]
        yield run[0][0], run[0][1], run[-1][1] + 1


def main() -> None:
    process = start()
    Sharer(process).run()
    process.closed()


if __name__ == "__main__":
    main()
