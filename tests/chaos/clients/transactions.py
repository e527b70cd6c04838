"""A transactional producer: each transaction writes to several partitions; some are aborted."""

from __future__ import annotations

from chaos.clients.process import Process, start
from chaos.identity import Identity, key_of, written_fields
from headrace import Producer
from headrace.errors import HeadraceError, ProducerFencedError, RequestTimeoutError

_PAUSE = 0.8
_ABORTED = 0.2
_WRITTEN = 0.7
_FLUSH_WITHIN = 10.0
_TIMEOUT_MS = 10_000


class Writer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._producer = self._new_producer()
        self._next: dict[int, int] = {}
        self._transaction = -1

    def _new_producer(self) -> Producer:
        process = self._process
        return Producer(**process.settings, transactional_id=process.client, transaction_timeout_ms=_TIMEOUT_MS)

    def run(self) -> None:
        self._end_earlier_transaction()
        while not self._process.stopping.wait(_PAUSE):
            self._transaction += 1
            try:
                self._write()
            except ProducerFencedError as error:  # the transaction took longer than its timeout
                self._note(error)
                self._replace()
            except HeadraceError as error:
                self._note(error)
                self._recover()
        self._producer.close()

    def _end_earlier_transaction(self) -> None:
        """A killed predecessor may have left one open, which would hide all later records."""
        while True:
            try:
                self._producer.begin()
                self._producer.abort()
                return
            except HeadraceError as error:
                self._note(error)
                self._replace()

    def _note(self, error: HeadraceError) -> None:
        self._process.ledger.write("refused", error=f"{type(error).__name__}: {error}", transaction=self._transaction)

    def _replace(self) -> None:
        try:
            self._producer.close()
        except HeadraceError as error:  # of deliveries that nobody looked at
            self._note(error)
        self._producer = self._new_producer()

    def _write(self) -> None:
        process, transaction = self._process, self._transaction
        self._producer.begin()
        partitions = [info.partition for info in self._producer.partitions_for_topic(process.topic)]
        chosen = process.dice.sample(partitions, process.dice.randint(1, len(partitions)))
        count = process.dice.randint(1, 6)
        runs = [(partition, self._next.get(partition, 0), count, transaction) for partition in chosen]
        process.ledger.write("sent", runs=runs)
        for partition, first, _, _ in runs:
            self._next[partition] = first + count
            for number in range(first, first + count):
                identity = Identity(process.name, partition, number, transaction)
                written = written_fields(identity)
                self._producer.send(process.topic, str(identity), key_of(identity), partition=partition, **written)
        if process.dice.random() < _ABORTED:
            if process.dice.random() < _WRITTEN:
                self._producer.flush(timeout=_FLUSH_WITHIN)  # otherwise abort() drops what was not sent yet
            process.ledger.write("aborting", transaction=transaction)
            self._producer.abort()
            process.ledger.write("txn_aborted", transaction=transaction)
        else:
            process.ledger.write("committing", transaction=transaction)
            self._commit()
            process.ledger.write("txn_committed", transaction=transaction)

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit()
                return
            except RequestTimeoutError as error:  # it may have succeeded: the same call finds out
                self._note(error)

    def _recover(self) -> None:
        try:
            self._producer.abort()
        except HeadraceError as error:
            self._note(error)
            self._replace()
        else:
            self._process.ledger.write("txn_aborted", transaction=self._transaction)


def main() -> None:
    process = start()
    Writer(process).run()
    process.closed()


if __name__ == "__main__":
    main()
