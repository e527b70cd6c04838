"""A task, which writes the rows of one partition of the DataFrame.

A worker process keeps its producers, with their connections, from task to task. Spark creates workers by fork(), so a
producer belongs to the process that created it. A task ends when all of its rows are delivered. They are delivered at
least once, because a task that Spark repeats writes its rows again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..._record_batch import RowError
from ...errors import ConfigError, RecordEncodeError, RequestTimeoutError
from ...sync.producer import Producer
from ..options.sink import SinkOptions
from ..worker.tuning import exclude_modules_from_gc
from .columns import TOPIC
from .encoding import RowEncoder

if TYPE_CHECKING:
    import pyarrow

# Idle producers by process and settings, the most recently used last. Only the main thread of a worker accesses them:
# a worker runs one task at a time.
_MAX_IDLE_PRODUCERS = 4
_idle_producers: dict[tuple[int, tuple[tuple[str, str], ...]], Producer] = {}


def write_rows(batches: Iterable[pyarrow.RecordBatch], options: SinkOptions, rows: RowEncoder) -> int:
    """Waits until all rows are delivered, and returns their number. Raises the first error of a row."""
    exclude_modules_from_gc()
    with borrow_producer(options.settings) as producer:
        return send_rows(producer, batches, options, rows)


def send_rows(
    producer: Producer, batches: Iterable[pyarrow.RecordBatch], options: SinkOptions, rows: RowEncoder
) -> int:
    """Sends the rows, and waits until all are delivered."""
    count = 0
    where = f"topic {options.topic}" if options.topic else "the topic in its column topic"
    for batch in batches:
        if options.topic is None and batch.column(TOPIC).null_count:
            raise ConfigError(
                "A row has no topic: its column topic is null. Set the option topic, or filter or fill these rows"
            )
        try:
            producer.send_arrow(options.topic, rows.encode(batch, options.topic))
        except (RowError, RecordEncodeError) as error:
            raise ConfigError(f"Cannot write a row to {where}: {error}") from error
        except RequestTimeoutError as error:
            servers = options.settings["bootstrap.servers"]
            raise RequestTimeoutError(f"{error} (kafka.bootstrap.servers={servers})") from error
        count += batch.num_rows
    producer.flush()
    return count


@contextlib.contextmanager
def borrow_producer(settings: Mapping[str, str]) -> Iterator[Producer]:
    """This worker's producer with these settings. Closes it if the block raises."""
    key = os.getpid(), tuple(sorted(settings.items()))
    producer = _idle_producers.pop(key, None)
    if producer is None:
        producer = Producer(settings)
    try:
        yield producer
    except BaseException:
        discard_producer(producer)
        raise
    _idle_producers[key] = producer
    own = [each for each in _idle_producers if each[0] == key[0]]
    if len(own) > _MAX_IDLE_PRODUCERS:
        discard_producer(_idle_producers.pop(own[0]))


def discard_producer(producer: Producer) -> None:
    """Closes it without waiting for records that are not delivered."""
    with contextlib.suppress(Exception):  # the error of its records is being raised already
        producer.close(timeout=0)
