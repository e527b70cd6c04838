"""The bounds of the newest records. `tests/integration/ui/test_ui_records.py` reads them from a broker."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest

from headrace import TopicPartition
from headrace.ui import records
from headrace.ui.records import RecordReader


class Poll(list[int]):
    nbytes = records._FETCH_BYTES


class EndlessConsumer:
    """A consumer of a topic whose ends are never reached."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.polls = 0
        self.starts: dict[TopicPartition, int] = {}

    def __call__(self, settings: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def partitions_for_topic(self, topic: str) -> list[Any]:
        return [SimpleNamespace(partition=at, leader=1) for at in range(self.partitions)]

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 10_000)

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    def assign(self, tps: list[TopicPartition]) -> None: ...

    def pause(self, tps: list[TopicPartition]) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.starts[tp] = offset

    async def poll(self, timeout: float) -> Poll:
        self.polls += 1
        assert self.polls < 100
        return Poll([1])

    async def position(self, tp: TopicPartition) -> int:
        return 0


def read(partitions: int, monkeypatch: pytest.MonkeyPatch) -> EndlessConsumer:
    consumer = EndlessConsumer(partitions)
    monkeypatch.setattr(records, "AsyncConsumer", consumer)

    async def main() -> None:
        await RecordReader({})._read("t", 100)

    asyncio.run(main())
    return consumer


def test_an_answer_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(1, monkeypatch).polls == 8


@pytest.mark.parametrize(("partitions", "each"), [(1, 100), (50, 100), (1000, 5), (6000, 1)])
def test_an_answer_is_bounded_by_the_records_of_all_partitions(
    partitions: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(read(partitions, monkeypatch).starts.values()) == {10_000 - each}


def test_text_that_utf_8_does_not_have_is_replaced() -> None:
    assert records._clipped('{"a":"\ud800ä"}') == '{"a":"?ä"}'


def test_records_are_decoded_by_one_thread_at_a_time_also_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    is_free = threading.Event()

    def rows(polls: object) -> list[dict[str, Any]]:
        begun.append(1)
        is_free.wait(10)
        return [{"offset": len(begun)}]

    async def read_nothing(topic: str, count: int) -> list[Any]:
        return []

    async def main() -> None:
        reader = RecordReader({})
        monkeypatch.setattr(reader, "_read", read_nothing)
        monkeypatch.setattr(reader._decoder, "rows", rows)
        with monkeypatch.context() as context:
            context.setattr(records, "_WITHIN", 0.1)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await reader.newest("t", 1)
        assert begun == [1]
        is_free.set()
        assert await reader.newest("t", 1) == [{"offset": 2}]

    asyncio.run(main())
