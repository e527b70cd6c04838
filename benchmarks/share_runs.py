"""Runs the measurements of share groups, each in a separate process, with the clients in turns."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping

from . import child, share
from .datasets import PARTITIONS, create_topic
from .groups import figures
from .process import run
from .readers import Job
from .results import Figure, median_figure

LIMITS = (1, 10, 100, 500, 1_000, 10_000)
RECORDS = 2_000_000
BATCH = 100
"""Records per batch of the topic for rates."""
BATCHES = (10, 100, 1_000, 5_000)
BYTES_LIMIT = 100
_FEW = 40_000
_MOST_ROUNDS = 3
READERS = (
    ("headrace", "batch_optimized"),
    ("headrace", "record_limit"),
    ("Java", "batch_optimized"),
    ("Java", "record_limit"),
    ("confluent", "batch_optimized"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """`rates` by reader and mode, then limit. `bytes` by mode, then records per batch: bytes fetched per byte of a
    record."""

    rounds: int
    rates: Mapping[str, Mapping[int, Figure]]
    bytes: Mapping[str, Mapping[int, Figure]]


def measure(servers: str, repeat: int, say: Callable[[str], None], limits: tuple[int, ...] = LIMITS) -> Shares:
    rounds = min(repeat, _MOST_ROUNDS)
    job = Job(servers, "share", PARTITIONS, RECORDS, members=BATCH)
    _fill(job, say)
    # The first share group of a cluster waits for the topic __share_group_state to be created.
    _figure("headrace", "batch_optimized", 500, dataclasses.replace(job, records=1000))
    runs: dict[str, dict[int, list[Figure]]] = {}
    for number in range(1, rounds + 1):
        for limit in limits:
            for client, mode in READERS:
                found = _figure(client, mode, limit, job)
                shown = found if isinstance(found, str) else f"{found['rate']:,.0f} records/s"
                say(f"share groups: {number}/{rounds} {client}, {mode}, max.poll.records={limit}: {shown}")
                runs.setdefault(f"{client}, {mode}", {}).setdefault(limit, []).append(found)
    rates = {name: {limit: median_figure(found) for limit, found in rows.items()} for name, rows in runs.items()}
    return Shares(rounds, rates, _bytes(servers, say))


def _bytes(servers: str, say: Callable[[str], None]) -> Mapping[str, Mapping[int, Figure]]:
    found: dict[str, dict[int, Figure]] = {mode: {} for mode in share.MODES}
    for batch in BATCHES:
        job = Job(servers, f"share-{batch}", 1, _FEW, members=batch)
        _fill(job, say)
        for mode in share.MODES:
            figure = _figure("headrace", mode, BYTES_LIMIT, job)
            if not isinstance(figure, str):
                figure = {"ratio": figure["bytes"] / (figure["records"] * share.RECORD_BYTES)}
            say(f"share groups: bytes in {mode} with {batch} records in a batch: {figure}")
            found[mode][batch] = figure
    return found


def _fill(job: Job, say: Callable[[str], None]) -> None:
    say(f"share groups: writing {job.records:,} records in batches of {job.members}")
    create_topic(job.topic, job.partitions, job.servers)
    run(child.command("share.fill", job), 300)


def _figure(client: str, mode: str, limit: int, job: Job) -> Figure:
    asked = dataclasses.replace(job, protocol=share.words(mode, limit, f"share-{uuid.uuid4()}"))
    if client == "Java":
        return figures(share.java_command_line(asked), share.figures_of_java)
    return figures(child.command(f"share.{client}", asked), json.loads)
