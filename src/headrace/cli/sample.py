"""Writes the sample data of a pipeline to its own broker, in the first run and more in later runs.

state/sample.json    exists during a write: the first record, the number of records, the end offsets before the write
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import HeadraceError
from .formatting import say

if TYPE_CHECKING:
    from ..sync.producer import Producer

Item = tuple[bytes, bytes, int]
"""Key, value, timestamp."""

_TIMEOUT = 60.0
_END_WITHIN = 0.5
_BEGUN = "sample.json"
_SETTINGS = {"linger.ms": 20, "compression.type": "lz4"}


def load_sample(directory: Path) -> ModuleType | None:
    """The module sample.py of the project; None if there is none. Raises HeadraceError if it is invalid."""
    path = directory / "sample.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("sample", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise HeadraceError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    if missing := [name for name in ("TOPIC", "PARTITIONS", "records") if not hasattr(module, name)]:
        raise HeadraceError(f"{path} does not define {missing[0]}")
    return module


def write_sample(sample: ModuleType, servers: str, count: int | None, first_time: int, later: int, state: Path) -> None:
    """Write the next records of the sample. An interrupted write is completed first."""
    ends = asyncio.run(_ends(sample, servers))
    written = _finish(sample, servers, ends, state / _BEGUN)
    there = sum(ends.values()) + written
    if count is None and written:
        count = 0
    elif count is None:
        count = later if there else first_time
    if count:
        begun = {"first": there, "count": count, "ends": ends if not written else asyncio.run(_ends(sample, servers))}
        _note(state / _BEGUN, begun)
        _write(sample, servers, sample.records(there, count), count)
        (state / _BEGUN).unlink()
    say(f"{there + count:,} records in {sample.TOPIC}, {written + count:,} of them new")


def _finish(sample: ModuleType, servers: str, ends: dict[int, int], path: Path) -> int:
    """Write the missing records of an interrupted write, and return their number. They are not simply the last ones,
    because partitions are written in parallel."""
    try:
        begun = json.loads(path.read_text())
    except FileNotFoundError:
        return 0
    before = {int(number): end for number, end in begun["ends"].items()}
    missing: list[Item] = []
    if all(before.get(number, 0) <= end for number, end in ends.items()):  # otherwise the topic was recreated
        there = _between(sample.TOPIC, servers, before, ends)
        for item in sample.records(begun["first"], begun["count"]):
            if there[item]:
                there[item] -= 1
            else:
                missing.append(item)
        say(f"the last sample was interrupted: {len(missing):,} of its {begun['count']:,} records are missing")
        _write(sample, servers, missing, len(missing))
    path.unlink()
    return len(missing)


def _between(topic: str, servers: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> Counter[Item]:
    from .. import Consumer, TopicPartition

    found: Counter[Item] = Counter()
    deadline = time.monotonic() + _TIMEOUT
    with Consumer(bootstrap_servers=servers, max_poll_records=-1) as consumer:
        waiting = {TopicPartition(topic, number) for number, end in ends.items() if starts.get(number, 0) < end}
        consumer.assign(list(waiting))
        for tp in waiting:
            consumer.seek(tp, starts.get(tp.partition, 0))
        while waiting:
            found.update((it.key or b"", it.value or b"", it.timestamp) for it in consumer.poll(1.0))
            waiting = {tp for tp in waiting if consumer.position(tp) < ends[tp.partition]}
            if waiting and time.monotonic() > deadline:
                raise HeadraceError(f"the records of {topic} could not be read within {_TIMEOUT:g} s")
    return found


def _note(path: Path, begun: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(begun))
    draft.rename(path)


async def _ends(sample: ModuleType, servers: str) -> dict[int, int]:
    """The end offset of each partition. Creates the topic if it does not exist, with unlimited retention."""
    from .._aio.admin import AsyncAdmin
    from ..types import TopicPartition

    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        found = (await admin.topics([sample.TOPIC])).get(sample.TOPIC)
        if found is None:
            await admin.create_topic(sample.TOPIC, sample.PARTITIONS, 1, {"retention.ms": "-1"})
            return dict.fromkeys(range(sample.PARTITIONS), 0)
        bounds = await admin.bounds(TopicPartition(it.topic, it.partition) for it in found.partitions)
        return {tp.partition: each.high for tp, each in bounds.items()}


def _write(sample: ModuleType, servers: str, records: Iterable[Item], count: int) -> None:
    from ..sync.producer import Producer

    producer = Producer({"bootstrap.servers": servers, "client.id": "headrace-cli", **_SETTINGS})
    try:
        _send(producer, sample.TOPIC, records, count)
        producer.flush(timeout=_TIMEOUT)
    except HeadraceError as error:
        raise HeadraceError(f"the sample was not written completely: {error}") from None
    finally:
        # No record must be written after this call. Most are acknowledged, unless it was interrupted.
        with contextlib.suppress(HeadraceError):
            producer.close(timeout=_END_WITHIN)


def _send(producer: Producer, topic: str, records: Iterable[Item], count: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"writing to {topic}", total=count)
        for number, (key, value, timestamp) in enumerate(records, 1):
            producer.send(topic, value, key, timestamp=timestamp)
            if number % 1000 == 0:
                bar.update(task, completed=number)
