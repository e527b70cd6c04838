"""The sample of a pipeline: every record is written once, also after interrupts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headrace import Consumer, TopicPartition
from headrace.cli.sample import write_sample
from support.brokers.admin import unique

PARTITIONS = 3


class Sample(ModuleType):
    """Numbered records. The user presses Ctrl-C at record `breaks_at`."""

    def __init__(self, servers: str) -> None:
        super().__init__("sample")
        self.TOPIC, self.PARTITIONS = unique("sample"), PARTITIONS
        self.breaks_at = -1
        self._servers = servers

    def records(self, first: int, count: int) -> Iterator[tuple[bytes, bytes, int]]:
        for number in range(first, first + count):
            if number == self.breaks_at:
                self._until_some_are_there(first)
                raise KeyboardInterrupt
            yield b"key %d" % (number % 50), b"%d" % number, 1_700_000_000_000 + number

    def _until_some_are_there(self, first: int) -> None:
        deadline = time.monotonic() + 60
        with Consumer(bootstrap_servers=self._servers) as consumer:
            places = [TopicPartition(self.TOPIC, number) for number in range(PARTITIONS)]
            while sum(consumer.end_offsets(places).values()) <= first:
                assert time.monotonic() < deadline

    def there(self) -> Counter[bytes | None]:
        found: Counter[bytes | None] = Counter()
        with Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer:
            places = [TopicPartition(self.TOPIC, number) for number in range(PARTITIONS)]
            ends = consumer.end_offsets(places)
            consumer.assign(places)
            while found.total() < sum(ends.values()):
                found.update(record.value for record in consumer.poll(5))
        return found


def numbers(count: int) -> Counter[bytes | None]:
    return Counter(b"%d" % number for number in range(count))


def test_a_write_that_is_interrupted_is_brought_to_its_end(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.sample._END_WITHIN", 60.0)  # enough for a slow broker
    sample = Sample(servers)

    def write(count: int | None) -> None:
        write_sample(sample, servers, count, 3_000, 500, tmp_path)

    sample.breaks_at = 2_000
    with pytest.raises(KeyboardInterrupt):
        write(None)
    assert 0 < sample.there().total() < 3_000
    sample.breaks_at = -1
    write(None)
    assert sample.there() == numbers(3_000)
    write(None)
    assert sample.there() == numbers(3_500)
    sample.breaks_at = 3_800
    with pytest.raises(KeyboardInterrupt):
        write(None)
    sample.breaks_at = -1
    write(100)
    assert sample.there() == numbers(4_100)
    write(0)
    assert sample.there() == numbers(4_100)
    assert not list(tmp_path.iterdir())
