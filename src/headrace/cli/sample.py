"""The sample of a pipeline's project, written to its own broker: so many records the first time, more later."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import HeadraceError

from .producing import make_producer
from .showing import say

_TIMEOUT = 60.0


def load_sample(directory: Path) -> ModuleType | None:
    """The module sample.py of the project; None if it has none. Raises HeadraceError if it is not as it should be."""
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


def write_sample(sample: ModuleType, servers: str, count: int | None, first_time: int, later: int) -> None:
    """From the first record on that is not there yet."""
    there = asyncio.run(_there(sample, servers))
    if count is None:
        count = later if there else first_time
    if count:
        _write(sample, servers, there, count)
    say(f"{there + count:,} records in {sample.TOPIC}, {count:,} of them new")


async def _there(sample: ModuleType, servers: str) -> int:
    """How many there are. Makes the topic if there is none; records of any age are kept."""
    from headrace.aio.admin import AsyncAdmin
    from headrace.types import TopicPartition

    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        found = (await admin.topics([sample.TOPIC])).get(sample.TOPIC)
        if found is None:
            await admin.create_topic(sample.TOPIC, sample.PARTITIONS, 1, {"retention.ms": "-1"})
            return 0
        bounds = await admin.bounds(TopicPartition(it.topic, it.partition) for it in found.partitions)
        return sum(each.high for each in bounds.values())


def _write(sample: ModuleType, servers: str, first: int, count: int) -> None:
    from rich.console import Console
    from rich.progress import Progress

    refused: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(error)

    settings = {"linger.ms": 20, "compression.type": "lz4", "enable.idempotence": True}
    producer = make_producer({"bootstrap.servers": servers, **settings})
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"writing to {sample.TOPIC}", total=count)
        for number, (key, value, timestamp) in enumerate(sample.records(first, count), 1):
            while True:
                try:
                    producer.produce(sample.TOPIC, value, key, timestamp=timestamp, on_delivery=delivered)
                except BufferError:
                    producer.poll(0.1)
                    continue
                break
            if number % 1000 == 0:
                producer.poll(0)
                bar.update(task, completed=number)
    left = producer.flush(_TIMEOUT)
    if refused or left:
        raise HeadraceError(f"the sample was not written: {refused[0] if refused else f'{left} records are left'}")
