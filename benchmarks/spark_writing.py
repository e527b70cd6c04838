"""The Spark sink compared with Spark's own: batch writes of the same rows in one session of PySpark 4.2, in turns.

Everything runs in `spark_write_session`, in a separate environment (`spark_peer`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import spark_peer
from .datasets import Dataset, payload_file
from .process import CommandFailed, run
from .results import Figure, median_figure

Say = Callable[[str], None]

SINKS = ("noop", "kafka", "headrace", "headrace, exactlyOnce")
_SHARE = 3  # divisor of the datasets' records
_TIMEOUT = 4 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class SparkWritings:
    """Medians by dataset and sink. `missing` is the reason why there are none."""

    rounds: int
    records: Mapping[str, int]
    writes: Mapping[str, Mapping[str, Figure]]
    missing: str = ""


def measure(servers: str, datasets: Sequence[Dataset], repeat: int, say: Say) -> SparkWritings:
    records = {each.name: math.ceil(each.records / _SHARE) for each in datasets}
    try:
        peer = spark_peer.prepare(say)
    except spark_peer.Unavailable as reason:
        say(f"Spark, writing: skipped: {reason}")
        return SparkWritings(repeat, records, {}, str(reason))
    with contextlib.ExitStack() as files:
        job = {
            "servers": servers,
            "jars": peer.jars,
            "repeat": repeat,
            "writes": [
                {
                    "name": each.name,
                    "payload": str(files.enter_context(payload_file(each))),
                    "records": records[each.name],
                    "codec": each.codec,
                }
                for each in datasets
            ],
        }
        try:
            output = run(_command(peer, job), _TIMEOUT).output
        except CommandFailed as failure:
            return SparkWritings(repeat, records, {}, str(failure))
    return SparkWritings(repeat, records, figures_of_session(output, say))


def _command(peer: spark_peer.Peer, job: Mapping[str, Any]) -> list[str]:
    own = [f"{name}={value}" for name, value in peer.own_environment.items()]
    return ["env", "-u", "SPARK_HOME", *own, peer.python, "-m", f"{__package__}.spark_write_session", json.dumps(job)]


def figures_of_session(output: str, say: Say) -> dict[str, dict[str, Figure]]:
    """The figures of its JSON lines. Lines with `failed` have the reason why there are none."""
    runs: dict[str, dict[str, list[Figure]]] = {}
    for line in output.splitlines():
        if line.startswith('{"what"'):
            found = json.loads(line)
            what, sink = found.pop("what"), found.pop("sink")
            figure: Figure = found.get("failed", found)
            runs.setdefault(what, {}).setdefault(sink, []).append(figure)
            say(f"Spark, writing: {what}, {sink}: {figure}")
    return {what: {sink: median_figure(found) for sink, found in sinks.items()} for what, sinks in runs.items()}
