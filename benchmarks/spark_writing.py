"""The Spark sink compared with Spark's own: batch writes of the same rows in one session of PySpark 4.2, in turns.

Everything runs in `spark_write_session`, in a separate environment (`spark_peer`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from . import spark_peer
from .datasets import Dataset, payload_file
from .process import CommandFailed, run
from .results import Figure
from .spark_peer import session_figures

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
            output = run(peer.command("spark_write_session", job), _TIMEOUT).output
        except CommandFailed as failure:
            return SparkWritings(repeat, records, {}, str(failure))
    return SparkWritings(repeat, records, session_figures(output, "sink", lambda line: say(f"Spark, writing: {line}")))
