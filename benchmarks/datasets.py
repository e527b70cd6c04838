"""The datasets: topics of JSON lines of one size, written by Kafka's own producer with its default batching.

Values have exactly that size and there are no keys, so every reader gets records × size bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.local import java_command

from .process import CommandFailed, run

PARTITIONS = 6
DEFAULT_RECORDS = 15_000_000  # a few seconds of reading, so that the warm-up does not dominate
BATCH_BYTES = 16_384  # Kafka's defaults
LINGER_MS = 5

_TOOLS = "org.apache.kafka.tools"
_DISTINCT_BYTES = 20_000_000
_SMALLEST = 100
_ITEM_BYTES = 100  # at most
_EVENTS = ("view", "click", "search", "add_to_cart", "checkout", "refund", "login", "logout")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclasses.dataclass(frozen=True, slots=True)
class Dataset:
    value_bytes: int
    codec: str
    records: int

    @property
    def name(self) -> str:
        size = f"{self.value_bytes}B" if self.value_bytes < 1024 else f"{self.value_bytes // 1024}KB"
        return size if self.codec == "none" else f"{size}-{self.codec}"

    @property
    def title(self) -> str:
        codec = "no compression" if self.codec == "none" else self.codec
        return f"{self.records:,} records of {self.value_bytes:,} bytes, {codec}"

    @property
    def topic(self) -> str:
        return f"benchmark-{self.name}-{self.records}"

    @property
    def room(self) -> int:
        """An upper bound of its size on disk."""
        return self.records * (self.value_bytes + 30)


def datasets(records: int = DEFAULT_RECORDS) -> list[Dataset]:
    """`records` is the number of records of 100 bytes. The other datasets have a tenth as many."""
    sizes = {100: records, 1024: math.ceil(records / 10)}
    return [Dataset(size, codec, count) for size, count in sizes.items() for codec in ("none", "zstd")]


def lines(value_bytes: int, seed: int = 0) -> Iterator[bytes]:
    """JSON objects of exactly this size. They repeat names and structure, but not values."""
    if value_bytes < _SMALLEST:
        raise ValueError(f"lines have at least {_SMALLEST} bytes, not {value_bytes}")
    chance = random.Random(seed)
    while True:
        event = {
            "id": chance.randrange(10**9, 10**10),
            "event": chance.choice(_EVENTS),
            "ts": 1_767_225_600_000 + chance.randrange(10**8),
            "note": "",
            "items": [_item(chance) for _ in range((value_bytes - _SMALLEST) // _ITEM_BYTES)],
        }
        event["note"] = "".join(chance.choices(_ALPHABET, k=value_bytes - len(_compact(event))))
        yield _compact(event)


def _item(chance: random.Random) -> dict[str, object]:
    return {
        "sku": f"{chance.randrange(16**8):08x}",
        "name": "".join(chance.choices(_ALPHABET, k=16)),
        "quantity": chance.randrange(1, 20),
        "price": chance.randrange(100, 100_000) / 100,
        "in_stock": chance.random() < 0.9,
    }


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def write(dataset: Dataset, servers: str) -> bool:
    """Write the topic unless it exists with all its records from an earlier run. Return whether it was written."""
    there = records_in(dataset.topic, servers)
    if there == dataset.records:
        return False
    if there is not None:
        raise CommandFailed(f"{dataset.topic} has {there:,} records of an interrupted run: remove it")
    create_topic(dataset.topic, PARTITIONS, servers)
    with payload_file(dataset) as payload:
        run(producer_command(dataset, servers, payload), timeout=60 + dataset.records / 20_000)
    there = records_in(dataset.topic, servers)
    if there != dataset.records:
        raise CommandFailed(f"{dataset.topic} has {there} records after writing {dataset.records}")
    return True


@contextlib.contextmanager
def payload_file(dataset: Dataset) -> Iterator[Path]:
    """A file of the dataset's distinct lines. Larger datasets repeat them."""
    with tempfile.NamedTemporaryFile(prefix="headrace-lines-") as file:
        source = lines(dataset.value_bytes)
        for _ in range(min(dataset.records, _DISTINCT_BYTES // dataset.value_bytes)):
            file.write(next(source) + b"\n")
        file.flush()
        yield Path(file.name)


def create_topic(topic: str, partitions: int, servers: str) -> None:
    """Create the topic unless it exists."""
    create = ("--create", "--if-not-exists", "--topic", topic, "--partitions", str(partitions))
    run(java_command(f"{_TOOLS}.TopicCommand", "--bootstrap-server", servers, *create), timeout=60)


def producer_command(dataset: Dataset, servers: str, payload: Path) -> list[str]:
    properties = {
        "acks": "all",
        "batch.size": BATCH_BYTES,
        "linger.ms": LINGER_MS,
        "compression.type": dataset.codec,
        # Partitions of equal size, so that no reader ends with one long partition.
        "partitioner.adaptive.partitioning.enable": "false",
    }
    return java_command(
        f"{_TOOLS}.ProducerPerformance",
        *("--bootstrap-server", servers, "--topic", dataset.topic, "--num-records", str(dataset.records)),
        *("--throughput", "-1", "--payload-file", str(payload)),
        *("--command-property", *(f"{name}={value}" for name, value in properties.items())),
    )


def stored_bytes(dataset: Dataset, data_dir: Path) -> int:
    """The size of the topic in the broker's log."""
    return sum(file.stat().st_size for file in data_dir.glob(f"broker-*/data/{dataset.topic}-*/*.log"))


def records_in(topic: str, servers: str) -> int | None:
    """The number of records in the topic; None if it does not exist."""
    command = java_command(f"{_TOOLS}.GetOffsetShell", "--bootstrap-server", servers, "--topic", topic)
    try:
        output = run(command, timeout=60).output
    except CommandFailed as error:
        if "Could not match any topic-partitions" in str(error):
            return None
        raise
    ends = [line.rpartition(":")[2] for line in output.splitlines() if line.startswith(f"{topic}:")]
    return sum(map(int, ends)) if ends else None
